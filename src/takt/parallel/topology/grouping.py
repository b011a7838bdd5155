"""Tensor-parallel groups with the highest lowest bandwidth inside, then pipelines of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from takt.parallel.topology.errors import TopologyError

MAX_EXACT_DEVICES = 16
"""Up to here the search is exact; beyond it, greedy with exchanges."""

Bandwidths = Sequence[Sequence[float]]
Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """`groups[i]` are the devices of one tensor-parallel group."""

    groups: tuple[Group, ...]
    lowest_bytes_s: float
    """Lowest bandwidth between two devices of a group; infinite for groups of one."""
    is_exact: bool


def lowest_bandwidth(bandwidths: Bandwidths, groups: Iterable[Sequence[int]]) -> float:
    return min(
        (bandwidths[a][b] for group in groups for a, b in itertools.combinations(group, 2)),
        default=float("inf"),
    )


def group_devices(bandwidths: Bandwidths, group_size: int) -> Grouping:
    """Divides all devices into groups of `group_size` so that the lowest bandwidth is highest.

    Among those divisions, one with the highest sum of the groups' lowest bandwidths. Raises
    `TopologyError` if the size does not divide the devices.
    """
    num_devices = len(bandwidths)
    if group_size < 1 or num_devices % group_size:
        sizes = ", ".join(str(n) for n in range(1, num_devices + 1) if num_devices % n == 0)
        raise TopologyError(
            f"{num_devices} devices do not divide into groups of {group_size}; sizes that do: "
            f"{sizes}"
        )
    if group_size == 1:
        return Grouping(tuple((d,) for d in range(num_devices)), float("inf"), True)
    if num_devices > MAX_EXACT_DEVICES:
        groups = _greedy(bandwidths, group_size)
        return Grouping(groups, lowest_bandwidth(bandwidths, groups), False)
    for floor in sorted({b for row in bandwidths for b in row if b != float("inf")}, reverse=True):
        found = _Partition(bandwidths, group_size, floor).best()
        if found is not None:
            return Grouping(found, lowest_bandwidth(bandwidths, found), True)
    raise TopologyError("the devices are not all connected")


class _Partition:
    """The best division into groups within which every bandwidth is at least `floor`.

    Sets of devices are bits of a number. The lowest device that is left picks its group, so each
    division is met once; what remains to be divided is solved once and kept.
    """

    def __init__(self, bandwidths: Bandwidths, group_size: int, floor: float) -> None:
        self._bandwidths = bandwidths
        self._group_size = group_size
        devices = range(len(bandwidths))
        self._near = [
            sum(1 << b for b in devices if a != b and bandwidths[a][b] >= floor) for a in devices
        ]
        self._lowest: dict[Group, float] = {}
        self._solved: dict[int, tuple[float, tuple[Group, ...]] | None] = {0: (0.0, ())}

    def best(self) -> tuple[Group, ...] | None:
        solved = self._solve((1 << len(self._near)) - 1)
        return None if solved is None else solved[1]

    def _solve(self, left: int) -> tuple[float, tuple[Group, ...]] | None:
        if left in self._solved:
            return self._solved[left]
        best = None
        first = (left & -left).bit_length() - 1
        for group in self._cliques((first,), left & self._near[first]):
            rest = self._solve(left & ~sum(1 << d for d in group))
            if rest is None:
                continue
            total = rest[0] + self._group_lowest(group)
            if best is None or total > best[0]:
                best = (total, (group, *rest[1]))
        self._solved[left] = best
        return best

    def _cliques(self, group: Group, candidates: int) -> Iterable[Group]:
        if len(group) == self._group_size:
            yield group
            return
        while candidates.bit_count() >= self._group_size - len(group):
            device = (candidates & -candidates).bit_length() - 1
            candidates &= candidates - 1
            yield from self._cliques((*group, device), candidates & self._near[device])

    def _group_lowest(self, group: Group) -> float:
        if group not in self._lowest:
            self._lowest[group] = lowest_bandwidth(self._bandwidths, [group])
        return self._lowest[group]


def _greedy(bandwidths: Bandwidths, group_size: int) -> tuple[Group, ...]:
    """Each group grows by the device with the best lowest bandwidth to it; exchanges follow."""
    left = list(range(len(bandwidths)))
    groups: list[list[int]] = []
    while left:
        group = [left.pop(0)]
        while len(group) < group_size:
            nearest = max(left, key=lambda d: (min(bandwidths[d][m] for m in group), -d))
            left.remove(nearest)
            group.append(nearest)
        groups.append(group)
    while _exchange(bandwidths, groups):
        pass
    return tuple(tuple(sorted(group)) for group in groups)


def _exchange(bandwidths: Bandwidths, groups: list[list[int]]) -> bool:
    """Swaps one pair of devices if that raises the two groups' lowest bandwidths in order."""
    for a, b in itertools.combinations(groups, 2):
        before = sorted(lowest_bandwidth(bandwidths, [g]) for g in (a, b))
        for i, j in itertools.product(range(len(a)), range(len(b))):
            a[i], b[j] = b[j], a[i]
            if sorted(lowest_bandwidth(bandwidths, [g]) for g in (a, b)) > before:
                return True
            a[i], b[j] = b[j], a[i]
    return False
