"""Modelled time of tensor-parallel groups that all reduce at once over shared links."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from takt.parallel.topology.graph import Topology

HOP_S = 5e-6
"""Latency of one exchange between two devices; the same for every grouping."""
MAX_EXACT_RING = 12
"""Time grows as N^2 2^N: 0.3 s at twelve."""


class AllReduceModel:
    """Reduce-scatter, then all-gather, either as a ring or with all peers at once.

    Of S bytes, every rank sends S/N to each other rank twice; in a ring, 2 (N-1)/N S to its
    neighbour. Each direction of an edge carries the sum of what all groups send over it, and the
    busiest one sets the time.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._bandwidths = topology.bandwidths()
        self._directed = _directed_paths(topology)

    def seconds(self, groups: Iterable[Sequence[int]], num_bytes: float) -> float:
        """One all-reduce of `num_bytes` in each group, all begun together; the faster form."""
        members = [group for group in groups if len(group) > 1]
        if not members:
            return 0.0
        return min(self._peers_s(members, num_bytes), self._rings_s(members, num_bytes))

    def _peers_s(self, groups: Sequence[Sequence[int]], num_bytes: float) -> float:
        flows = [
            (a, b, 2 * num_bytes / len(group))
            for group in groups
            for a, b in itertools.permutations(group, 2)
        ]
        return 2 * HOP_S + self._busiest_s(flows)

    def _rings_s(self, groups: Sequence[Sequence[int]], num_bytes: float) -> float:
        flows = []
        for group in groups:
            ring = best_ring(self._bandwidths, group)
            each = 2 * (len(group) - 1) / len(group) * num_bytes
            flows += [(a, b, each) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
        steps = 2 * (max(len(group) for group in groups) - 1)
        return steps * HOP_S + self._busiest_s(flows)

    def _busiest_s(self, flows: Iterable[tuple[int, int, float]]) -> float:
        load: dict[tuple[int, bool], float] = {}
        for a, b, num_bytes in flows:
            for edge in self._directed[a][b]:
                load[edge] = load.get(edge, 0.0) + num_bytes
        edges = self._topology.edges
        return max(amount / edges[index].bytes_s for (index, _), amount in load.items())


def best_ring(bandwidths: Sequence[Sequence[float]], group: Sequence[int]) -> list[int]:
    """The order of a group whose lowest bandwidth between neighbours in a ring is highest.

    Of such rings the one with the least sum of 1/bandwidth: it crosses narrow links, which others
    share, least often. Exact for groups of at most `MAX_EXACT_RING`; larger ones go from each
    device to the nearest that is left.
    """
    if len(group) <= 3:
        return list(group)
    if len(group) > MAX_EXACT_RING:
        return _nearest_neighbours(bandwidths, group)
    floors = sorted({bandwidths[a][b] for a, b in itertools.combinations(group, 2)}, reverse=True)
    for floor in floors:
        ring = _ring_above(bandwidths, group, floor)
        if ring is not None:
            return ring
    return list(group)


def _ring_above(
    bandwidths: Sequence[Sequence[float]], group: Sequence[int], floor: float
) -> list[int] | None:
    """The cheapest cycle over links of at least `floor`, or None.

    Held and Karp's recursion: the cheapest way from the first device through a set of others to
    each of them, set by set; sets are bits of a number.
    """
    count = len(group)
    costs = [
        {
            j: 1 / bandwidths[group[i]][group[j]]
            for j in range(count)
            if j != i and bandwidths[group[i]][group[j]] >= floor
        }
        for i in range(count)
    ]
    everything = (1 << count) - 1
    best: list[dict[int, tuple[float, int]]] = [{} for _ in range(everything + 1)]
    best[1][0] = (0.0, 0)
    for used in range(1, everything):
        for last, (cost, _) in best[used].items():
            for following, more in costs[last].items():
                if used >> following & 1:
                    continue
                ends = best[used | 1 << following]
                if following not in ends or cost + more < ends[following][0]:
                    ends[following] = (cost + more, last)
    closing = {
        last: cost + costs[last][0]
        for last, (cost, _) in best[everything].items()
        if 0 in costs[last]
    }
    if not closing:
        return None
    used, last, order = everything, min(closing, key=lambda i: closing[i]), list[int]()
    while used:
        order.append(group[last])
        used, last = used & ~(1 << last), best[used][last][1]
    return order[::-1]


def _nearest_neighbours(bandwidths: Sequence[Sequence[float]], group: Sequence[int]) -> list[int]:
    ring, left = [group[0]], list(group[1:])
    while left:
        nearest = max(left, key=lambda d: bandwidths[ring[-1]][d])
        left.remove(nearest)
        ring.append(nearest)
    return ring


def _directed_paths(topology: Topology) -> list[list[list[tuple[int, bool]]]]:
    """Edges of each pair's path with the direction: True from the edge's a to its b."""
    paths = topology.paths()
    directed: list[list[list[tuple[int, bool]]]] = []
    for source, row in enumerate(paths):
        directed.append([])
        for path in row:
            at, steps = source, []
            for index in path:
                edge = topology.edges[index]
                forward = edge.a == at
                steps.append((index, forward))
                at = edge.b if forward else edge.a
            directed[-1].append(steps)
    return directed
