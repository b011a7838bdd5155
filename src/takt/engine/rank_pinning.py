"""Keeps each rank's threads on CPUs that no other rank has, where there are enough of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from takt.config import EngineConfig
from takt.parallel.cpu_list import format_cpu_list
from takt.parallel.cpu_topology import CpuTopology
from takt.parallel.pinning import RankCpus, cpus_per_rank

_log = logging.getLogger(__name__)


def plan_rank_cpus(
    config: EngineConfig, num_threads: int, num_cpus: int, topology: CpuTopology
) -> list[RankCpus] | None:
    """CPUs of each rank with `num_threads` threads; None if ranks are not pinned.

    They are not where their threads are more than the `num_cpus` that may run at once (the mask, or
    a cgroup's quota if that is less): then any CPU that is idle must do. Nor are ranks that are
    threads of one process.
    """
    parallel = config.parallel
    if parallel.distributed_executor_backend == "inproc":
        return None
    num_ranks = parallel.num_ranks
    if num_ranks * num_threads > min(num_cpus, len(topology.cpus)):
        _log.info(
            "ranks are not pinned: %d threads share %d CPUs", num_ranks * num_threads, num_cpus
        )
        return None
    ranks = cpus_per_rank(
        topology, num_ranks, num_threads, tensor_size=parallel.tensor_parallel_size
    )
    for number, rank in enumerate(ranks):
        _log.info("rank %d: %s", number, describe(rank))
    return ranks


def describe(rank: RankCpus) -> str:
    """In a line: its CPUs, and the NUMA node if they belong to one."""
    node = "" if rank.numa_node is None else f", NUMA node {rank.numa_node}"
    return f"CPUs {format_cpu_list(rank.cpus)}{node}"


def pin(cpus: Sequence[int]) -> bool:
    """Keeps the calling thread, and those that it starts, on `cpus`; False if there are none.

    Also False, with a warning, where the kernel refuses: the CPUs may have been taken away since.
    """
    if not cpus:
        return False
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        _log.warning(
            "CPUs %s cannot be used alone: %s; not pinned", format_cpu_list(cpus), error.strerror
        )
        return False
    return True


class PinnedCaller:
    """The calling thread on rank 0's CPUs, until `release`: it may be a user's own thread."""

    def __init__(self, ranks: Sequence[RankCpus] | None) -> None:
        self._before = os.sched_getaffinity(0)
        self.is_pinned = ranks is not None and pin(ranks[0].cpus)

    def release(self) -> None:
        if self.is_pinned:
            self.is_pinned = False
            pin(sorted(self._before))
