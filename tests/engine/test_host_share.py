"""Replicas divide CPUs and KV memory evenly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_driver import engine_config

from takt.config import EngineConfig, ParallelOptions
from takt.engine.host_share import divide_host
from takt.engine.load import load_model
from takt.errors import ConfigError
from takt.parallel.cpu_topology import Cpu, CpuTopology
from takt.types.step_ids import first_step_id, replica_of


def machine(num_nodes: int, cores_per_node: int, threads: int = 1) -> CpuTopology:
    """Second hardware threads are numbered after all cores, as Linux does."""
    num_cores = num_nodes * cores_per_node
    cpus = [
        Cpu(
            thread * num_cores + node * cores_per_node + core,
            (node, core),
            f"l3 of {node}",
            node,
        )
        for thread in range(threads)
        for node in range(num_nodes)
        for core in range(cores_per_node)
    ]
    return CpuTopology(tuple(cpus), {})


def config(dp: int, tp: int = 1, pp: int = 1, **options: object) -> EngineConfig:
    parallel = ParallelOptions(
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        strict=bool(options.pop("strict", False)),
    )
    return replace(engine_config(**options), parallel=parallel)


def test_memory_and_threads_are_divided() -> None:
    asked = config(2, tp=2, kv_cache_memory_bytes=1 << 20)
    parts = divide_host(asked, machine(2, 4), 8)
    assert [share.name for _, share in parts] == ["replica 0", "replica 1"]
    for one, _ in parts:
        assert one.cache.kv_cache_memory_bytes == 1 << 19
        assert one.cache.gpu_memory_utilization == asked.cache.gpu_memory_utilization / 2
        assert one.model.num_threads == 2
        assert one.parallel.num_ranks == 2
        assert one.parallel.data_parallel_size == 1
    assert [share.cpus for _, share in parts] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_quota_bounds_threads_but_not_places() -> None:
    parts = divide_host(config(2), machine(1, 8), 4)
    assert [one.model.num_threads for one, _ in parts] == [2, 2]
    assert [share.cpus for _, share in parts] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_hardware_threads_of_a_core_stay_together() -> None:
    parts = divide_host(config(2), machine(1, 4, threads=2), 8)
    assert [set(share.cpus or ()) for _, share in parts] == [{0, 1, 4, 5}, {2, 3, 6, 7}]


def test_what_the_replicas_leave_is_the_servers() -> None:
    parts = divide_host(config(2, num_threads=1), machine(1, 4), 4)
    placements = [share.placement for _, share in parts]
    assert all(share.cpus is None for _, share in parts)
    assert [p and p.engine for p in placements] == [(0,), (1,)]
    assert [p and p.server for p in placements] == [(2, 3), (2, 3)]


def test_more_replicas_than_cpus_take_turns(caplog: pytest.LogCaptureFixture) -> None:
    parts = divide_host(config(3, tp=2), machine(1, 2), 2)
    assert [share.cpus for _, share in parts] == [(0,), (1,), (0,)]
    assert [one.model.num_threads for one, _ in parts] == [1, 1, 1]
    assert "3 replicas of 2 ranks share 2 CPUs" in caplog.text
    assert "at least 3 times as long" in caplog.text
    with pytest.raises(ConfigError, match="--strict refuses this: ask for at most 2 ranks"):
        divide_host(config(3, tp=2, strict=True), machine(1, 2), 2)


def test_threads_on_ray_are_for_the_nodes_to_say() -> None:
    asked = config(2)
    asked = replace(asked, parallel=replace(asked.parallel, distributed_executor_backend="ray"))
    for one, _ in divide_host(asked, machine(1, 4), 4):
        assert one.model.num_threads is None
        assert one.parallel.data_parallel_size == 2, "it is one of them"


def test_steps_tell_whose_they_are() -> None:
    assert first_step_id(0, 1) == 0
    for replica in range(4):
        first = first_step_id(replica, 4)
        assert replica_of(first) == replica_of(first - 1) == replica_of(first + 10**9) == replica


def test_an_engine_in_this_process_is_one_replica() -> None:
    with pytest.raises(ConfigError, match="--data-parallel-size 2 is for takt serve"):
        load_model(config(2))
    with pytest.raises(ConfigError, match="--data-parallel-size must be at least 1, got 0"):
        config(0)
