"""Pipelines of tensor-parallel groups: neighbouring stages lie on the best links that remain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from takt.parallel.topology.errors import TopologyError
from takt.parallel.topology.grouping import MAX_EXACT_DEVICES, Bandwidths, Group, group_devices


@dataclass(frozen=True, slots=True)
class Placement:
    """`devices[replica][stage][rank]` is a device's number."""

    devices: tuple[tuple[Group, ...], ...]
    group_bytes_s: float
    """Lowest bandwidth inside a tensor-parallel group; infinite for groups of one."""
    hop_bytes_s: float
    """Lowest from a rank to its neighbour in the next stage; infinite without stages."""
    is_exact: bool
    """Both searches were exhaustive."""


def place_ranks(bandwidths: Bandwidths, tp: int, pp: int = 1) -> Placement:
    """All devices as replicas of `pp` stages of `tp` ranks.

    Groups are chosen first (`group_devices`), then their order, by the lowest bandwidth of a hop;
    ranks of a stage are numbered so that each sends over the best link to its own successor.
    Raises `TopologyError` for sizes that do not divide the devices.
    """
    grouping = group_devices(bandwidths, tp)
    groups = grouping.groups
    if pp < 1 or len(groups) % pp:
        raise TopologyError(
            f"{len(groups)} groups of {tp} do not divide into pipelines of {pp} stages; the "
            f"number of devices, {len(bandwidths)}, must be a multiple of {tp * max(pp, 1)}"
        )
    links = [[_matching(bandwidths, a, b)[0] for b in groups] for a in groups]
    is_exact = len(groups) <= MAX_EXACT_DEVICES
    order = _best_chains(links, pp) if is_exact else _greedy_chains(links, pp)
    replicas = []
    for start in range(0, len(order), pp):
        stages = [groups[order[start]]]
        for index in order[start + 1 : start + pp]:
            stages.append(_matching(bandwidths, stages[-1], groups[index])[1])
        replicas.append(tuple(stages))
    hop = min(
        (
            bandwidths[a][b]
            for stages in replicas
            for one, following in itertools.pairwise(stages)
            for a, b in zip(one, following, strict=True)
        ),
        default=float("inf"),
    )
    return Placement(tuple(replicas), grouping.lowest_bytes_s, hop, grouping.is_exact and is_exact)


def _matching(bandwidths: Bandwidths, a: Group, b: Group) -> tuple[float, Group]:
    """The order of `b` that makes the lowest bandwidth to `a`, rank by rank, highest."""
    floors = sorted({bandwidths[x][y] for x in a for y in b}, reverse=True)
    for floor in floors:
        partner: dict[int, int] = {}  # of b's devices, in a
        if all(_augment(bandwidths, a, b, i, floor, partner, set()) for i in range(len(a))):
            successor = {i: y for y, i in partner.items()}
            return floor, tuple(successor[i] for i in range(len(a)))
    raise TopologyError("two groups are not connected")


def _augment(
    bandwidths: Bandwidths,
    a: Group,
    b: Group,
    i: int,
    floor: float,
    partner: dict[int, int],
    seen: set[int],
) -> bool:
    """One augmenting path of a bipartite matching (Kuhn's algorithm)."""
    near = [y for y in b if bandwidths[a[i]][y] >= floor and y not in seen]
    for y in sorted(near, key=lambda y: y in partner):
        if y in seen:
            continue
        seen.add(y)
        if y not in partner or _augment(bandwidths, a, b, partner[y], floor, partner, seen):
            partner[y] = i
            return True
    return False


def _best_chains(links: Bandwidths, length: int) -> list[int]:
    """All groups in an order whose runs of `length` have the highest lowest link."""
    if length == 1:
        return list(range(len(links)))
    floors = sorted({b for i, row in enumerate(links) for j, b in enumerate(row) if i != j})
    low, high, best = 0, len(floors) - 1, list[int]()
    while low <= high:
        middle = (low + high + 1) // 2
        found = _chains_above(links, length, floors[middle])
        if found is not None:
            best, low = found, middle + 1
        else:
            high = middle - 1
    return best


def _chains_above(links: Bandwidths, length: int, floor: float) -> list[int] | None:
    """Groups in chains of `length` over links of at least `floor`, or None if there are none.

    `ends[used]` is the set of groups that may come last when the set `used` is placed; sets are
    bits of a number. A chain may begin with any group that is left.
    """
    num_groups = len(links)
    everything = (1 << num_groups) - 1
    near = [
        sum(1 << j for j in range(num_groups) if i != j and links[i][j] >= floor)
        for i in range(num_groups)
    ]
    ends = {0: 1}
    for used in range(everything):
        last = ends.get(used)
        if not last:
            continue
        following = everything
        if used.bit_count() % length:
            following = 0
            for group in _bits(last):
                following |= near[group]
        for group in _bits(following & ~used):
            extended = used | 1 << group
            ends[extended] = ends.get(extended, 0) | 1 << group
    if not ends.get(everything):
        return None
    order: list[int] = []
    used, allowed = everything, ends[everything]
    while used:
        group = next(_bits(allowed))
        order.append(group)
        used ^= 1 << group
        allowed = ends.get(used, 0)
        if used.bit_count() % length:
            allowed &= near[group]
    return order  # from its end: links are the same both ways


def _greedy_chains(links: Bandwidths, length: int) -> list[int]:
    left = list(range(len(links)))
    order: list[int] = []
    while left:
        if len(order) % length:
            last = order[-1]
            following = max(left, key=lambda g: (links[last][g], -g))
        else:
            following = left[0]
        left.remove(following)
        order.append(following)
    return order


def _bits(number: int) -> Iterator[int]:
    """Indices of a number's bits, ascending."""
    while number:
        lowest = number & -number
        number ^= lowest
        yield lowest.bit_length() - 1
