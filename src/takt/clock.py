"""The one clock: monotonic nanoseconds, injected wherever time is a decision's input."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Monotonic nanoseconds; comparable only within one host since its boot."""
        ...


class MonotonicClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves when told, for tests and simulations."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        self._now_ns += delta_ns
