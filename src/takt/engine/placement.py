"""Where a server's two processes run, and how urgently, where there is room for both."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from takt.parallel.cpu_topology import CpuTopology, read_cpu_topology
from takt.parallel.pinning import cpus_per_rank

_REAL_TIME_LIMIT = Path("/proc/sys/kernel/sched_rt_runtime_us")
_REAL_TIME_PRIORITY = 1
"""The lowest: whatever else is real-time on the machine still goes first."""
_NICENESS = -10
_POOL_THREAD = "takt-pool"


@dataclass(frozen=True, slots=True)
class Placement:
    """CPUs of the engine and of the server, none in common."""

    engine: tuple[int, ...]
    server: tuple[int, ...]


def place(
    num_threads: int | None,
    num_ranks: int,
    usable: Sequence[int],
    *,
    tensor_size: int = 1,
    topology: CpuTopology | None = None,
) -> Placement | None:
    """The first of the usable CPUs for `num_threads` of the engine, the rest for the server.

    Several ranks get those that `cpus_per_rank` deals out, in the order of ranks. None where the
    engine takes all CPUs, or was not told how many to take. `topology` is that of the usable CPUs,
    this machine's if None.
    """
    if num_threads is None or num_threads * num_ranks >= len(usable):
        return None
    ordered = sorted(usable)
    taken = ordered[:num_threads]
    if num_ranks > 1:
        cpus = topology or read_cpu_topology(allowed=ordered)
        ranks = cpus_per_rank(cpus, num_ranks, num_threads, tensor_size=tensor_size)
        taken = [cpu for rank in ranks for cpu in rank.cpus]
    return Placement(tuple(taken), tuple(cpu for cpu in ordered if cpu not in taken))


def raise_priority(cpus: Sequence[int], limit_file: Path = _REAL_TIME_LIMIT) -> str | None:
    """Puts the engine's thread and its pool above others; there must be CPUs left for those.

    Real-time, and then on `cpus` alone, where the kernel does not throttle it: by default it stops
    such threads for 50 ms in every second that they fill, as a busy engine does. Otherwise a better
    niceness, on any CPU: what is not real-time must be able to leave a CPU that others have taken.
    Returns what was done, None where nothing is permitted.
    """
    threads = _engine_threads()
    if _is_unthrottled(limit_file):
        with contextlib.suppress(OSError):
            for thread in threads:
                os.sched_setaffinity(thread, cpus)
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(_REAL_TIME_PRIORITY))
            return "real-time"
    with contextlib.suppress(OSError):
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
        return f"niceness {_NICENESS}"
    return None


def _engine_threads() -> list[int]:
    """The main thread and those of the pool, by name: others of this process are in no hurry."""
    threads = [os.getpid()]
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == _POOL_THREAD:
                threads.append(int(task.name))
    return threads


def _is_unthrottled(limit_file: Path) -> bool:
    try:
        return int(limit_file.read_text()) < 0
    except (OSError, ValueError):
        return False
