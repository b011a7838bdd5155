"""Engine and server apart where there are CPUs for both, and the engine first on its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_process import engine, run

from takt.engine.placement import Placement, place
from takt.parallel.cpu_topology import read_cpu_topology


def test_the_server_gets_what_the_engine_leaves(tmp_path: Path) -> None:
    assert place(2, 1, [7, 4, 5, 6]) == Placement((4, 5), (6, 7))
    assert place(
        1, 3, [7, 4, 5, 6], topology=read_cpu_topology(tmp_path, [4, 5, 6, 7])
    ) == Placement((4, 5, 6), (7,))


def test_ranks_are_spread_over_caches_and_the_server_gets_the_rest(tmp_path: Path) -> None:
    """Two caches of two cores: a rank on each."""
    for cpu in range(4):
        cache = tmp_path / f"devices/system/cpu/cpu{cpu}/cache/index3"
        cache.mkdir(parents=True)
        (cache / "level").write_text("3\n")
        (cache / "shared_cpu_list").write_text("0-1\n" if cpu < 2 else "2-3\n")
    topology = read_cpu_topology(tmp_path, range(4))
    expected = Placement((0, 2), (1, 3))
    assert place(1, 2, range(4), tensor_size=2, topology=topology) == expected


@pytest.mark.parametrize("num_threads", [None, 2, 3])
def test_without_cpus_to_spare_nobody_is_moved(num_threads: int | None) -> None:
    assert place(num_threads, 1, [0, 1]) is None
    assert place(1, 2, [0, 1]) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_engine_may_leave_its_cpus_unless_it_goes_first_on_them() -> None:
    usable = os.sched_getaffinity(0)

    async def work() -> None:
        async with engine(num_threads=1) as client:
            assert client.placement is not None
            assert client.engine_pid is not None
            cpus = os.sched_getaffinity(client.engine_pid)
            is_real_time = os.sched_getscheduler(client.engine_pid) == os.SCHED_RR
            assert cpus == (set(client.placement.engine) if is_real_time else usable)

    run(work())


def test_priority_is_raised_where_it_is_permitted_and_only_then(tmp_path: Path) -> None:
    """In a process of its own; whatever is permitted here, it says what it did."""
    limit = tmp_path / "limit"
    for throttle in ("950000", "-1"):
        limit.write_text(throttle)
        code = (
            "import os, pathlib\n"
            "from takt.engine.placement import raise_priority\n"
            f"limit, cpus = pathlib.Path({str(limit)!r}), sorted(os.sched_getaffinity(0))[:1]\n"
            "print(raise_priority(cpus, limit), os.sched_getscheduler(0), "
            "os.getpriority(os.PRIO_PROCESS, 0))"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
        )
        words = result.stdout.split()
        is_real_time = int(words[-2]) == os.SCHED_RR
        assert is_real_time == (words[0] == "real-time")
        assert (words[0] == "niceness") == (int(words[-1]) == -10)
        assert not (is_real_time and throttle != "-1")
