"""Waits for a CPU, read from the kernel's own account."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from takt.observe.run_queue import RunQueueWait, delivering_threads


def fake_thread(folder: Path, name: str, waited_ns: int) -> Path:
    thread = folder / name
    thread.mkdir()
    (thread / "schedstat").write_text(f"1000 {waited_ns} 3\n")
    return thread


def test_waits_of_all_threads_are_summed_and_read_anew(tmp_path: Path) -> None:
    threads = [fake_thread(tmp_path, str(i), 10 + i) for i in range(3)]
    waits = RunQueueWait()
    waits.watch(threads)
    before = waits.total_ns()
    (threads[1] / "schedstat").write_text("9000 5011 7\n")
    assert waits.total_ns() - before == 5000
    waits.close()


def test_the_sum_goes_on_when_other_threads_are_watched(tmp_path: Path) -> None:
    waits = RunQueueWait()
    waits.watch([fake_thread(tmp_path, "old", 500)])
    before = waits.total_ns()
    new = fake_thread(tmp_path, "new", 7_000_000)
    waits.watch([new, tmp_path / "gone"])
    assert waits.total_ns() == before
    (new / "schedstat").write_text("0 7000100 1")
    assert waits.total_ns() == before + 100
    waits.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps none")
def test_a_thread_that_shares_its_cpu_waits() -> None:
    """Two threads that both compute on one CPU, without the interpreter's lock between them."""
    cpus = os.sched_getaffinity(0)
    waits = RunQueueWait()
    os.sched_setaffinity(0, {min(cpus)})
    try:
        waits.watch([Path("/proc/self/task") / str(threading.get_native_id())])
        before = waits.total_ns()
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do :; done"], os.environ)
        deadline = time.monotonic() + 20
        while waits.total_ns() - before < 5_000_000 and time.monotonic() < deadline:
            pass
        assert waits.total_ns() - before >= 5_000_000
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.sched_setaffinity(0, cpus)
        waits.close()


def test_threads_that_deliver_are_the_loop_and_zeromqs() -> None:
    own = threading.get_native_id()
    (thread,) = [t for t in delivering_threads(own, []) if t.name == str(own)]
    assert (thread / "comm").exists()
    assert delivering_threads(own, [2**22 + 1])[0] == thread
