"""CPUs of ranks: whole cores, near each other, borders respected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import epyc_two_sockets, write_sysfs_cpus

from takt.errors import ConfigError
from takt.parallel.cpu_topology import CpuTopology, read_cpu_topology
from takt.parallel.pinning import cpus_per_rank


def small(tmp_path: Path, **shape: int) -> CpuTopology:
    counts = {"sockets": 1, "nodes_per_socket": 1, "l3_per_node": 1, "cores_per_l3": 4} | shape
    write_sysfs_cpus(tmp_path, **counts)
    return read_cpu_topology(tmp_path, range(256))


@pytest.fixture
def two_domains(tmp_path: Path) -> CpuTopology:
    """CPUs 0-3 and 4-7 by cache, 8-15 their second hardware threads."""
    write_sysfs_cpus(tmp_path, sockets=1, nodes_per_socket=1, l3_per_node=2, cores_per_l3=4)
    return read_cpu_topology(tmp_path, range(16))


def test_ranks_share_the_cores_and_stay_in_their_cache() -> None:
    ranks = cpus_per_rank(epyc_two_sockets(), 8)
    assert [rank.cpus for rank in ranks] == [tuple(range(4 * r, 4 * r + 4)) for r in range(8)]
    assert [rank.numa_node for rank in ranks] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert not any(rank.is_shared for rank in ranks)


def test_few_ranks_spread_over_caches_and_nodes(two_domains: CpuTopology) -> None:
    ranks = cpus_per_rank(two_domains, 2, threads_per_rank=2)
    assert [rank.cpus for rank in ranks] == [(0, 1), (4, 5)]
    nodes = [rank.numa_node for rank in cpus_per_rank(epyc_two_sockets(), 4, 8)]
    assert nodes == [0, 1, 2, 3]


def test_a_rank_wider_than_a_cache_keeps_to_its_node() -> None:
    ranks = cpus_per_rank(epyc_two_sockets(), 4)
    assert [rank.cpus for rank in ranks] == [tuple(range(8 * r, 8 * r + 8)) for r in range(4)]
    assert [rank.numa_node for rank in ranks] == [0, 1, 2, 3]


def test_a_rank_wider_than_a_node_has_memory_on_none() -> None:
    ranks = cpus_per_rank(epyc_two_sockets(), 1)
    assert ranks[0].cpus == tuple(range(32)) and ranks[0].numa_node is None


def test_second_hardware_threads_come_after_all_cores(two_domains: CpuTopology) -> None:
    ranks = cpus_per_rank(two_domains, 2, threads_per_rank=8)
    assert [rank.cpus for rank in ranks] == [
        (0, 1, 2, 3, 8, 9, 10, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    ]
    assert not any(rank.is_shared for rank in ranks)


def test_more_threads_than_cpus_are_shared_and_say_so(two_domains: CpuTopology) -> None:
    ranks = cpus_per_rank(two_domains, 5, threads_per_rank=4)
    uses = [cpu for rank in ranks for cpu in rank.cpus]
    assert len(uses) == 20 and set(uses) == set(range(16))
    assert sorted(rank.is_shared for rank in ranks) == [False, False, False, True, True]


def test_groups_keep_to_a_node_and_spread_over_nodes() -> None:
    """Two groups of two ranks: each has a node, and each rank a cache of it."""
    ranks = cpus_per_rank(epyc_two_sockets(), 4, 2, tensor_size=2)
    assert [rank.cpus for rank in ranks] == [(0, 1), (4, 5), (8, 9), (12, 13)]
    assert [rank.numa_node for rank in ranks] == [0, 0, 1, 1]
    eight = cpus_per_rank(epyc_two_sockets(), 8, 4, tensor_size=2)
    assert [rank.numa_node for rank in eight] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_group_that_fits_a_node_across_its_caches_stays_on_it() -> None:
    """Of five threads: more than a cache has cores, and a node has cores for one of them only."""
    ranks = cpus_per_rank(epyc_two_sockets(), 2, 5)
    assert [rank.cpus for rank in ranks] == [(0, 1, 2, 3, 4), (8, 9, 10, 11, 12)]
    three = cpus_per_rank(epyc_two_sockets(), 2, 4, tensor_size=2)
    assert [rank.cpus for rank in three] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_groups_wider_than_a_node_cross_borders_as_few_as_may_be() -> None:
    ranks = cpus_per_rank(epyc_two_sockets(), 4, 8, tensor_size=4)
    assert [rank.numa_node for rank in ranks] == [0, 1, 2, 3]


@settings(max_examples=100, deadline=None)
@given(
    num_groups=st.integers(1, 6),
    tensor_size=st.integers(1, 4),
    threads=st.integers(1, 9),
    missing=st.sets(st.integers(0, 63), max_size=40),
)
def test_whatever_the_mask_no_cpu_is_dealt_twice_while_there_are_enough(
    num_groups: int, tensor_size: int, threads: int, missing: set[int]
) -> None:
    whole = epyc_two_sockets()
    allowed = tuple(cpu for cpu in whole.cpus if cpu.number not in missing)
    topology = CpuTopology(allowed, whole.distances)
    num_ranks = num_groups * tensor_size
    ranks = cpus_per_rank(topology, num_ranks, threads, tensor_size=tensor_size)
    dealt = [cpu for rank in ranks for cpu in rank.cpus]
    assert len(ranks) == num_ranks and all(len(rank.cpus) == threads for rank in ranks)
    assert set(dealt) <= {cpu.number for cpu in allowed}
    is_enough = num_ranks * threads <= len(allowed)
    assert is_enough == (len(set(dealt)) == len(dealt))
    assert is_enough == (not any(rank.is_shared for rank in ranks))


def test_masks_of_one_cpu_work(two_domains: CpuTopology, tmp_path: Path) -> None:
    one = read_cpu_topology(tmp_path, [5])
    ranks = cpus_per_rank(one, 3)
    assert [rank.cpus for rank in ranks] == [(5,)] * 3
    assert all(rank.is_shared for rank in ranks)


@pytest.mark.parametrize(("ranks", "threads"), [(0, None), (2, 0)])
def test_counts_below_one_are_refused(
    two_domains: CpuTopology, ranks: int, threads: int | None
) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        cpus_per_rank(two_domains, ranks, threads)
