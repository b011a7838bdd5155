"""`takt topo --ranks`: the CPUs that an engine here would pin its ranks to."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from takt.config import EngineConfig, ModelConfigOptions, ParallelOptions
from takt.engine.rank_model import layout_of, rank_threads
from takt.engine.rank_pinning import plan_rank_cpus
from takt.ops.create import num_usable_cpus
from takt.parallel.cpu_list import format_cpu_list
from takt.parallel.cpu_topology import CpuTopology, read_cpu_topology
from takt.parallel.pinning import RankCpus


def show_ranks(
    tensor_size: int, num_stages: int, num_threads: int | None, *, as_json: bool, console: Console
) -> None:
    """Raises `ConfigError` for sizes below 1."""
    config = EngineConfig(
        model=ModelConfigOptions(num_threads=num_threads),
        parallel=ParallelOptions(
            tensor_parallel_size=tensor_size, pipeline_parallel_size=num_stages
        ),
    )
    num_cpus, topology = num_usable_cpus(), read_cpu_topology()
    threads = rank_threads(config, num_cpus, config.parallel.num_ranks)
    ranks = plan_rank_cpus(config, threads, num_cpus, topology)
    if as_json:
        document = {"num_threads": threads, "ranks": _as_json(config, ranks, topology)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif ranks is None:
        console.print(
            f"not pinned: {config.parallel.num_ranks} ranks with {threads} threads each, and "
            f"{num_cpus} CPUs that may run at once",
            markup=False,
        )
    else:
        console.print(_table(config, ranks, topology))


def _table(config: EngineConfig, ranks: list[RankCpus], topology: CpuTopology) -> Table:
    table = Table(title="CPUs of ranks")
    for heading in ("rank", "stage", "of its group", "CPUs", "CPUs of their L3 caches", "NUMA"):
        table.add_column(heading)
    layout = layout_of(config)
    for number, rank in enumerate(ranks):
        table.add_row(
            str(number),
            str(layout.stage_of(number)),
            str(layout.tensor_rank_of(number)),
            format_cpu_list(rank.cpus),
            " + ".join(_caches(rank, topology)),
            "several" if rank.numa_node is None else str(rank.numa_node),
        )
    return table


def _as_json(
    config: EngineConfig, ranks: list[RankCpus] | None, topology: CpuTopology
) -> list[dict[str, object]] | None:
    """None where ranks are not pinned."""
    if ranks is None:
        return None
    layout = layout_of(config)
    return [
        {
            "rank": number,
            "stage": layout.stage_of(number),
            "tensor_rank": layout.tensor_rank_of(number),
            "cpus": list(rank.cpus),
            "l3": _caches(rank, topology),
            "numa_node": rank.numa_node,
        }
        for number, rank in enumerate(ranks)
    ]


def _caches(rank: RankCpus, topology: CpuTopology) -> list[str]:
    names = {cpu.number: cpu.l3 for cpu in topology.cpus}
    return list(dict.fromkeys(names[cpu] for cpu in rank.cpus))
