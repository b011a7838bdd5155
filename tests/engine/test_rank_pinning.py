"""Ranks on CPUs of their own, as far as there are any."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from takt.config import EngineConfig, ParallelOptions
from takt.engine.rank_pinning import PinnedCaller, describe, pin, plan_rank_cpus
from takt.parallel.cpu_topology import Cpu, CpuTopology
from takt.parallel.pinning import RankCpus

FOUR = CpuTopology(tuple(Cpu(i, (0, i), "0-3", 0) for i in range(4)), {0: {0: 10}})


def config(tp: int, pp: int, backend: str = "auto") -> EngineConfig:
    return EngineConfig(
        parallel=ParallelOptions(
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            distributed_executor_backend=backend,
        )
    )


def test_ranks_are_pinned_where_all_their_threads_can_run_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    ranks = plan_rank_cpus(config(2, 1), 2, 4, FOUR)
    assert ranks is not None and [rank.cpus for rank in ranks] == [(0, 1), (2, 3)]
    assert "rank 1: CPUs 2-3, NUMA node 0" in caplog.text
    assert describe(RankCpus((0, 9), None, False)) == "CPUs 0,9"


@pytest.mark.parametrize(("num_threads", "num_cpus"), [(3, 4), (2, 2)])
def test_more_threads_than_the_mask_or_the_quota_allows_are_not(
    caplog: pytest.LogCaptureFixture, num_threads: int, num_cpus: int
) -> None:
    caplog.set_level("INFO")
    assert plan_rank_cpus(config(1, 2), num_threads, num_cpus, FOUR) is None
    assert f"{2 * num_threads} threads share {num_cpus} CPUs" in caplog.text


def test_ranks_that_are_threads_are_not() -> None:
    assert plan_rank_cpus(config(2, 1, "inproc"), 1, 4, FOUR) is None


def in_a_thread(work: Callable[[], None]) -> None:
    """Masks belong to threads: that of the tests' own stays."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_a_caller_gets_its_cpus_back() -> None:
    usable = os.sched_getaffinity(0)
    first = RankCpus((min(usable),), 0, False)

    def work() -> None:
        caller = PinnedCaller([first])
        assert caller.is_pinned and os.sched_getaffinity(0) == {min(usable)}
        for _ in range(2):
            caller.release()
            assert os.sched_getaffinity(0) == usable
        assert not PinnedCaller(None).is_pinned

    in_a_thread(work)


def test_cpus_that_are_gone_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        before = os.sched_getaffinity(0)
        assert not pin([1000])
        assert not pin([])
        assert os.sched_getaffinity(0) == before

    in_a_thread(work)
    assert "CPUs 1000 cannot be used alone" in caplog.text
