"""How long threads wanted a CPU and had none, as the kernel's scheduler counts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_IO_THREAD = "ZMQbg/IO"
"""ZeroMQ's threads carry each message between two processes: one on either side."""


class RunQueueWait:
    """Sums the waits of some threads, each read in about two microseconds.

    `schedstat` has, since the thread's start, nanoseconds on a CPU, nanoseconds runnable without
    one, and the number of turns. Where a kernel keeps no such file the sum stays 0.
    """

    def __init__(self) -> None:
        self._files: list[int] = []
        self._ended_ns = 0
        """Of threads that are watched no more: the sum never falls."""

    def watch(self, threads: Iterable[Path]) -> None:
        """Watches these threads instead of the former ones; a path is that of a task in /proc."""
        before = self.total_ns()
        self.close()
        for thread in threads:
            with contextlib.suppress(OSError):
                self._files.append(os.open(thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC))
        self._ended_ns += before - self.total_ns()

    def total_ns(self) -> int:
        total = self._ended_ns
        for file in self._files:
            with contextlib.suppress(OSError, IndexError):
                total += int(os.pread(file, 64, 0).split()[1])
        return total

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def delivering_threads(server_thread: int, engine_pids: Iterable[int]) -> list[Path]:
    """Those that a token passes on its way from the engine's step to the socket."""
    own = Path("/proc/self/task")
    threads = [own / str(server_thread), *_io_threads(own)]
    for pid in engine_pids:
        threads += _io_threads(Path(f"/proc/{pid}/task"))
    return threads


def _io_threads(tasks: Path) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for task in tasks.iterdir():
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().startswith(_IO_THREAD):
                    found.append(task)
    return found
