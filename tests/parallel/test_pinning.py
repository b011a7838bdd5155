"""CPUs of ranks: whole cores, near each other, borders respected."""

from __future__ import annotations

from pathlib import Path

import pytest
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
