"""Groups of ranks against an exhaustive search, and against the order devices happen to have."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from machines import SWITCHED, UNEVEN, machine

from takt.parallel.topology.all_reduce import AllReduceModel, best_ring
from takt.parallel.topology.errors import TopologyError
from takt.parallel.topology.graph import renumbered
from takt.parallel.topology.grouping import Group, group_devices, lowest_bandwidth
from takt.parallel.topology.pipelines import place_ranks

MESSAGE_BYTES = 16e6
CASES = [
    (name, size)
    for name in (*SWITCHED, *UNEVEN)
    for size in ((2,) if name == "a100_nvlink_pairs" else (2, 4))
]


def partitions(devices: tuple[int, ...], size: int) -> Iterator[tuple[Group, ...]]:
    """Every division into groups of `size`."""
    if not devices:
        yield ()
        return
    first, rest = devices[0], devices[1:]
    for others in itertools.combinations(rest, size - 1):
        left = tuple(d for d in rest if d not in others)
        for further in partitions(left, size):
            yield ((first, *others), *further)


def permutations(count: int, number: int) -> list[list[int]]:
    rng = random.Random(5)
    return [rng.sample(range(count), count) for _ in range(number)]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_equals_exhaustive_search_however_devices_are_numbered(name: str, size: int) -> None:
    topology = machine(name)
    model, bandwidths = AllReduceModel(topology), topology.bandwidths()
    every = list(partitions(tuple(range(topology.num_devices)), size))
    highest = max(lowest_bandwidth(bandwidths, groups) for groups in every)
    fastest = min(model.seconds(groups, MESSAGE_BYTES) for groups in every)
    for order in permutations(topology.num_devices, 20):
        found = group_devices(renumbered(topology, order).bandwidths(), size)
        groups = [tuple(order[d] for d in group) for group in found.groups]
        assert found.is_exact
        assert sorted(d for g in groups for d in g) == list(range(topology.num_devices))
        assert found.lowest_bytes_s == lowest_bandwidth(bandwidths, groups) == highest
        assert model.seconds(groups, MESSAGE_BYTES) == pytest.approx(fastest)


@pytest.mark.parametrize(("name", "size"), [case for case in CASES if case[0] in UNEVEN])
def test_twice_as_fast_as_the_median_numbering_on_uneven_machines(name: str, size: int) -> None:
    topology = machine(name)
    model = AllReduceModel(topology)
    found = group_devices(topology.bandwidths(), size)
    times = sorted(
        model.seconds([order[i : i + size] for i in range(0, len(order), size)], MESSAGE_BYTES)
        for order in permutations(topology.num_devices, 101)
    )
    assert times[50] / model.seconds(found.groups, MESSAGE_BYTES) >= 2.0


@pytest.mark.parametrize("name", SWITCHED)
def test_on_a_switch_every_grouping_is_as_good(name: str) -> None:
    bandwidths = machine(name).bandwidths()
    links = {b for row in bandwidths for b in row if b != float("inf")}
    assert len(links) == 1
    assert group_devices(bandwidths, 4).lowest_bytes_s == links.pop()


def test_random_machines_equal_exhaustive_search() -> None:
    rng = random.Random(11)
    for _ in range(20):
        bandwidths = [[float("inf")] * 6 for _ in range(6)]
        for a, b in itertools.combinations(range(6), 2):
            bandwidths[a][b] = bandwidths[b][a] = float(rng.choice([1, 2, 3, 5, 8]))
        for size in (2, 3):
            every = list(partitions(tuple(range(6)), size))
            found = group_devices(bandwidths, size)
            assert found.lowest_bytes_s == max(lowest_bandwidth(bandwidths, g) for g in every)

            def total(groups: tuple[Group, ...], of: list[list[float]] = bandwidths) -> float:
                return sum(lowest_bandwidth(of, [group]) for group in groups)

            assert total(found.groups) == max(
                total(g) for g in every if lowest_bandwidth(bandwidths, g) == found.lowest_bytes_s
            )


def test_sixteen_devices_are_searched_exactly() -> None:
    """Four boxes of four, numbered round-robin."""
    bandwidths = [
        [float("inf") if a == b else 300.0 if a % 4 == b % 4 else 50.0 for b in range(16)]
        for a in range(16)
    ]
    found = group_devices(bandwidths, 4)
    assert found.is_exact and found.lowest_bytes_s == 300.0
    assert set(found.groups) == {tuple(range(i, 16, 4)) for i in range(4)}


def test_more_devices_are_grouped_greedily_and_said_to_be() -> None:
    bandwidths = [
        [float("inf") if a == b else 300.0 if a % 3 == b % 3 else 50.0 for b in range(24)]
        for a in range(24)
    ]
    found = group_devices(bandwidths, 8)
    assert not found.is_exact and found.lowest_bytes_s == 300.0
    placement = place_ranks(bandwidths, 8, 3)
    assert not placement.is_exact and placement.hop_bytes_s == 50.0


def test_sizes_that_do_not_divide_name_those_that_do() -> None:
    bandwidths = machine("l40s_two_sockets").bandwidths()
    with pytest.raises(TopologyError, match="sizes that do: 1, 2, 4, 8"):
        group_devices(bandwidths, 3)
    with pytest.raises(TopologyError, match="multiple of 6"):
        place_ranks(bandwidths, 2, 3)


def chains(groups: tuple[int, ...], length: int) -> Iterator[tuple[int, ...]]:
    yield from (
        order
        for order in itertools.permutations(groups)
        if all(order[i] < order[i + length] for i in range(0, len(order) - length, length))
    )


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("name", ["dgx1_v100", "l40s_two_sockets", "epyc_two_sockets"])
def test_stages_lie_on_the_best_links_that_remain(name: str, tp: int, pp: int) -> None:
    """Against every order of the groups, and every pairing of ranks, for each hop."""
    bandwidths = machine(name).bandwidths()
    placement = place_ranks(bandwidths, tp, pp)
    groups = group_devices(bandwidths, tp).groups
    placed = [stage for replica in placement.devices for stage in replica]
    assert sorted(sorted(stage) for stage in placed) == sorted(sorted(g) for g in groups)

    def link(a: Group, b: Group) -> float:
        return max(
            min(bandwidths[x][y] for x, y in zip(a, order, strict=True))
            for order in itertools.permutations(b)
        )

    links = [[link(a, b) for b in groups] for a in groups]
    best = max(
        min(links[a][b] for i, (a, b) in enumerate(itertools.pairwise(order)) if (i + 1) % pp)
        for order in chains(tuple(range(len(groups))), pp)
    )
    assert placement.hop_bytes_s == best
    assert placement.is_exact


def test_rings_take_the_links_between_neighbours() -> None:
    """All eight of a DGX-1 have a ring of double NVLinks, though many pairs have no link."""
    bandwidths = machine("dgx1_v100").bandwidths()
    ring = best_ring(bandwidths, range(8))
    assert sorted(ring) == list(range(8))
    neighbours = zip(ring, [*ring[1:], ring[0]], strict=True)
    assert min(bandwidths[a][b] for a, b in neighbours) == 50e9
    assert AllReduceModel(machine("dgx1_v100")).seconds([range(8)], 1e9) == pytest.approx(
        14 * 5e-6 + 2 * 7 / 8 * 1e9 / 50e9
    )
