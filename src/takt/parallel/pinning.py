"""CPUs for each rank: whole cores, close together, no rank across a border it can avoid."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from takt.errors import ConfigError
from takt.parallel.cpu_topology import Cpu, CpuTopology


@dataclass(frozen=True, slots=True)
class RankCpus:
    """Where one rank's threads run; pin thread i to `cpus[i]`, or all of them to the set."""

    cpus: tuple[int, ...]
    numa_node: int | None
    """Where its memory should lie; None if its CPUs belong to several nodes."""
    is_shared: bool
    """Another rank has one of these CPUs too: waits must sleep, not spin."""


def cpus_per_rank(
    topology: CpuTopology,
    num_ranks: int,
    threads_per_rank: int | None = None,
    *,
    tensor_size: int = 1,
) -> list[RankCpus]:
    """CPUs for ranks 0, 1, ...; neighbouring ranks lie next to each other.

    Each `tensor_size` ranks are a group, which exchanges far more than others do. Groups are spread
    evenly over NUMA nodes that hold them whole, since each node brings its bandwidth, and ranks
    over the caches of their node; no rank crosses a cache's border where all of them fit within
    caches, and no group a node's where groups fit. A core's second hardware thread is taken only
    once every core is. `threads_per_rank` is by default an equal share of the cores, at least one;
    with more threads than CPUs ranks share them, in turn.
    Raises `ConfigError` for counts below 1.
    """
    if num_ranks < 1 or tensor_size < 1:
        raise ConfigError(f"the number of ranks must be at least 1, got {num_ranks}")
    if threads_per_rank is not None and threads_per_rank < 1:
        raise ConfigError(f"--num-threads must be at least 1, got {threads_per_rank}")
    if not topology.cpus:
        raise ConfigError("this process may run on no CPU")
    first_threads, further_threads = _by_place(topology)
    num_cores = sum(len(domain) for domain in first_threads)
    each = threads_per_rank or max(1, num_cores // num_ranks)
    needed = num_ranks * each
    domains = first_threads
    if needed > num_cores:
        domains = [a + b for a, b in zip(first_threads, further_threads, strict=True)]
    dealt = _deal(domains, num_ranks, each, tensor_size)
    uses: dict[int, int] = {}
    for cpus in dealt:
        for cpu in cpus:
            uses[cpu.number] = uses.get(cpu.number, 0) + 1
    return [_rank_cpus(cpus, uses) for cpus in dealt]


def _rank_cpus(cpus: Sequence[Cpu], uses: dict[int, int]) -> RankCpus:
    nodes = {cpu.numa_node for cpu in cpus}
    return RankCpus(
        cpus=tuple(cpu.number for cpu in cpus),
        numa_node=nodes.pop() if len(nodes) == 1 else None,
        is_shared=any(uses[cpu.number] > 1 for cpu in cpus),
    )


def _by_place(topology: CpuTopology) -> tuple[list[list[Cpu]], list[list[Cpu]]]:
    """By L3 domain: one hardware thread of each core, and all others."""
    seen: set[tuple[int, int]] = set()
    firsts, others = [], []
    for _, members in topology.l3_domains():
        first: list[Cpu] = []
        other: list[Cpu] = []
        for cpu in members:
            (other if cpu.core in seen else first).append(cpu)
            seen.add(cpu.core)
        firsts.append(first)
        others.append(other)
    return firsts, others


def _deal(
    domains: Sequence[Sequence[Cpu]], num_ranks: int, each: int, tensor_size: int
) -> list[list[Cpu]]:
    """Whole groups within nodes and ranks within caches; else what of it is possible."""
    nodes: list[list[Sequence[Cpu]]] = [
        list(group)
        for _, group in itertools.groupby(
            (domain for domain in domains if domain), key=lambda domain: domain[0].numa_node
        )
    ]
    num_groups = num_ranks // tensor_size if num_ranks % tensor_size == 0 else num_ranks
    group_size = num_ranks // num_groups
    whole_nodes: list[list[Sequence[Cpu]]] = [[_joined(node)] for node in nodes]
    by_cache_and_by_node = (nodes, whole_nodes)
    for parts in by_cache_and_by_node:
        room = [sum(len(part) // each for part in node) // group_size for node in parts]
        if sum(room) >= num_groups:
            counts = _even_counts(room, num_groups)
            return [
                cpus
                for node, count in zip(parts, counts, strict=True)
                for cpus in _spread(node, count * group_size, each)
            ]
    for parts in by_cache_and_by_node:
        places = [part for node in parts for part in node]
        if sum(len(place) // each for place in places) >= num_ranks:
            return _spread(places, num_ranks, each)
    line = [cpu for node in nodes for cpu in _joined(node)]
    return [
        [line[i % len(line)] for i in range(r * each, (r + 1) * each)] for r in range(num_ranks)
    ]


def _joined(domains: Sequence[Sequence[Cpu]]) -> list[Cpu]:
    return [cpu for domain in domains for cpu in domain]


def _even_counts(room: Sequence[int], total: int) -> list[int]:
    """How many of `total` go to each place, as even as room allows."""
    counts = [0] * len(room)
    for _ in range(total):
        emptiest = min(
            (p for p in range(len(room)) if counts[p] < room[p]),
            key=lambda p: (counts[p] / room[p], p),
        )
        counts[emptiest] += 1
    return counts


def _spread(places: Sequence[Sequence[Cpu]], num_ranks: int, each: int) -> list[list[Cpu]]:
    """Ranks in order over places."""
    counts = _even_counts([len(place) // each for place in places], num_ranks)
    dealt = []
    for place, count in zip(places, counts, strict=True):
        dealt += [list(place[r * each : (r + 1) * each]) for r in range(count)]
    return dealt
