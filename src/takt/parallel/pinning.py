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
    topology: CpuTopology, num_ranks: int, threads_per_rank: int | None = None
) -> list[RankCpus]:
    """CPUs for ranks 0, 1, ...; neighbouring ranks lie next to each other.

    Cores are dealt node by node and cache by cache. Where the nodes, or failing that the caches,
    have room for equal numbers of whole ranks, no rank crosses a border. A core's second hardware
    thread is taken only once every core is. `threads_per_rank` is by default an equal share of the
    cores, at least one; with more threads than CPUs ranks share them, in turn.
    Raises `ConfigError` for counts below 1.
    """
    if num_ranks < 1:
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
    dealt = _deal(domains, num_ranks, each)
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


def _deal(domains: Sequence[Sequence[Cpu]], num_ranks: int, each: int) -> list[list[Cpu]]:
    """Whole ranks within caches if all ranks fit so, else within nodes, else straight through."""
    nodes = [
        [cpu for domain in group for cpu in domain]
        for _, group in itertools.groupby(
            (domain for domain in domains if domain), key=lambda domain: domain[0].numa_node
        )
    ]
    for places in (domains, nodes):
        room = [len(place) // each for place in places]
        if sum(room) >= num_ranks:
            return _spread(places, room, num_ranks, each)
    line = [cpu for domain in domains for cpu in domain]
    return [
        [line[i % len(line)] for i in range(r * each, (r + 1) * each)] for r in range(num_ranks)
    ]


def _spread(
    places: Sequence[Sequence[Cpu]], room: Sequence[int], num_ranks: int, each: int
) -> list[list[Cpu]]:
    """Ranks in order over places, as even as room allows: each brings its share of bandwidth."""
    counts = [0] * len(places)
    for _ in range(num_ranks):
        emptiest = min(
            (p for p in range(len(places)) if counts[p] < room[p]),
            key=lambda p: (counts[p] / room[p], p),
        )
        counts[emptiest] += 1
    dealt = []
    for place, count in zip(places, counts, strict=True):
        dealt += [list(place[r * each : (r + 1) * each]) for r in range(count)]
    return dealt
