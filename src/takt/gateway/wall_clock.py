"""Time that outlives a process: for times to live, and for people. Never for leases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class WallClock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970; may jump when somebody sets the clock."""
        ...


class SystemWallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualWallClock:
    """A clock that moves when told, for tests and simulations."""

    def __init__(self, start_ms: int = 1) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, delta_ms: int) -> None:
        self._now_ms += delta_ms


def boot_id() -> str:
    """Tells this boot of the machine from every other: monotonic times of another mean nothing."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
