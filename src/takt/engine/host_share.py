"""What of the host each replica of an engine has: CPUs, and memory for KV."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from takt.config import EngineConfig
from takt.engine.placement import Placement, place
from takt.errors import ConfigError
from takt.parallel.cpu_topology import CpuTopology
from takt.types.step_ids import first_step_id

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostShare:
    """One engine's part of the host it runs on, and how it is called."""

    name: str
    placement: Placement | None
    """Which CPUs engine and server should have; None if there are too few for both."""
    cpus: tuple[int, ...] | None
    """CPUs that the engine keeps to, its placement aside; None: it may use any."""
    first_step_id: int

    @classmethod
    def whole(cls, config: EngineConfig, usable: Sequence[int]) -> HostShare:
        """Of an engine that is alone."""
        parallel = config.parallel
        placement = place(
            config.model.num_threads,
            parallel.num_ranks,
            usable,
            tensor_size=parallel.tensor_parallel_size,
        )
        return cls("the engine", placement, None, first_step_id(0, 1))


def divide_host(
    config: EngineConfig, topology: CpuTopology, num_cpus: int
) -> list[tuple[EngineConfig, HostShare]]:
    """The configuration and the part of each of `data_parallel_size` replicas, all alike. With Ray
    it keeps that number: which of them share a node, and its CPUs, shows where ranks are.

    `num_cpus` is how many CPUs may be busy at a time, where a cgroup's quota allows fewer than the
    topology has. With more replicas than CPUs they take turns; that is a warning, and an error with
    --strict.
    """
    size = config.parallel.data_parallel_size
    num_ranks = config.parallel.num_ranks
    if config.parallel.distributed_executor_backend != "ray":
        _check_room(config, num_cpus)  # with Ray each engine looks at the hosts of its ranks
    is_here = config.parallel.distributed_executor_backend != "ray"
    num_threads, parallel = config.model.num_threads, config.parallel
    if is_here:
        num_threads = num_threads or max(1, num_cpus // (size * num_ranks))
        parallel = replace(parallel, data_parallel_size=1)
    cpus = _in_order(topology)
    whole = place(
        config.model.num_threads,
        size * num_ranks,
        cpus,
        tensor_size=config.parallel.tensor_parallel_size,
        topology=topology,
    )
    parts = _slices(cpus if whole is None else whole.engine, size)
    pool_bytes, host_gib = config.cache.kv_cache_memory_bytes, config.cache.kv_offloading_size
    one = replace(
        config,
        model=replace(config.model, num_threads=num_threads),
        cache=replace(
            config.cache,
            kv_cache_memory_bytes=None if pool_bytes is None else max(1, pool_bytes // size),
            gpu_memory_utilization=config.cache.gpu_memory_utilization / size,
            kv_offloading_size=None if host_gib is None else host_gib / size,
        ),
        parallel=parallel,
    )
    return [
        (
            one,
            HostShare(
                name=f"replica {number}",
                placement=None if whole is None else Placement(part, whole.server),
                cpus=part if whole is None else None,
                first_step_id=first_step_id(number, size),
            ),
        )
        for number, part in enumerate(parts)
    ]


def _check_room(config: EngineConfig, num_cpus: int) -> None:
    size, num_ranks = config.parallel.data_parallel_size, config.parallel.num_ranks
    if size * num_ranks <= num_cpus:
        return
    sentence = (
        f"{size} replicas of {num_ranks} {'rank' if num_ranks == 1 else 'ranks'} share {num_cpus} "
        f"CPUs: they take turns, so with all of them busy a step takes at least "
        f"{size * num_ranks / num_cpus:g} times as long as with a CPU for each rank"
    )
    if config.parallel.strict:
        raise ConfigError(
            f"{sentence}; --strict refuses this: ask for at most {num_cpus} ranks in all"
        )
    _log.warning(sentence)


def _in_order(topology: CpuTopology) -> list[int]:
    """CPUs such that a slice crosses few borders: nodes, then caches, then cores together."""
    ordered = sorted(topology.cpus, key=lambda c: (c.numa_node, c.l3, c.core, c.number))
    return [cpu.number for cpu in ordered]


def _slices(cpus: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """`count` parts, as equal as can be; with fewer CPUs than parts, one each in turn."""
    num = len(cpus)
    if num < count:
        return [(cpus[i % num],) for i in range(count)]
    return [tuple(cpus[i * num // count : (i + 1) * num // count]) for i in range(count)]
