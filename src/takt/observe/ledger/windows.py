"""Latencies of the last stretches of time: counts, late ones, and percentiles within 2 %."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

WINDOW_NS = 30_000_000_000
NUM_WINDOWS = 20

_FIRST_NS = 10_000.0
_LOG_STEP = math.log(1.02)
_NUM_BINS = 1024
"""Each 2 % wider than the one before: 10 us to 6,400 s."""

Ints = npt.NDArray[np.int64]


class Latencies:
    """A histogram of times, and how many of them were late."""

    def __init__(self) -> None:
        self._bins = np.zeros(_NUM_BINS, dtype=np.int64)
        self.num_late = 0
        self._largest_ns = 0

    @property
    def num(self) -> int:
        return int(self._bins.sum())

    def add(self, times_ns: Ints) -> None:
        if not len(times_ns):
            return
        places = np.log(np.maximum(times_ns, 1) / _FIRST_NS) / _LOG_STEP
        bins = np.clip(places.astype(np.int64), 0, _NUM_BINS - 1)
        self._bins += np.bincount(bins, minlength=_NUM_BINS)
        self._largest_ns = max(self._largest_ns, int(times_ns.max()))

    def merge(self, other: Latencies) -> None:
        self._bins += other._bins
        self.num_late += other.num_late
        self._largest_ns = max(self._largest_ns, other._largest_ns)

    def percentile_ms(self, percent: float) -> float | None:
        """The upper edge of the bin that holds it; None of nothing."""
        num = self.num
        if not num:
            return None
        rank = max(math.ceil(num * percent / 100), 1)
        place = int(np.searchsorted(np.cumsum(self._bins), rank))
        edge_ns = _FIRST_NS * math.exp(_LOG_STEP * (place + 1))
        return min(edge_ns, float(self._largest_ns)) / 1e6

    @property
    def share_in_time(self) -> float | None:
        num = self.num
        return None if not num else 1 - self.num_late / num

    @property
    def is_held(self) -> bool:
        """Whether the P99 is within the target: at most one in a hundred is late."""
        return 100 * self.num_late <= self.num


class Window:
    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.itl = Latencies()
        self.ttft = Latencies()
        self.num_requests = 0
        self.num_good_requests = 0
        """Requests whose first token was in time and whose gaps' P99 was."""

    @property
    def is_empty(self) -> bool:
        return not (self.itl.num or self.ttft.num or self.num_requests)


class Windows:
    """The current stretch, those before it that saw something, and all since the start."""

    def __init__(self, now_ns: int) -> None:
        self.current = Window(now_ns)
        self.past: deque[Window] = deque(maxlen=NUM_WINDOWS)
        self.begin_ns = now_ns
        self._ended = Window(now_ns)

    def advance(self, now_ns: int) -> None:
        """Begins a new stretch when the current one is over."""
        window = self.current
        if now_ns - window.begin_ns < WINDOW_NS:
            return
        if not window.is_empty:
            self.past.append(window)
            _merge(self._ended, window)
        elapsed = (now_ns - window.begin_ns) // WINDOW_NS * WINDOW_NS
        self.current = Window(window.begin_ns + elapsed)

    def whole(self) -> Window:
        """All since the start, the current stretch too."""
        whole = Window(self.begin_ns)
        _merge(whole, self._ended)
        _merge(whole, self.current)
        return whole


def _merge(into: Window, window: Window) -> None:
    into.itl.merge(window.itl)
    into.ttft.merge(window.ttft)
    into.num_requests += window.num_requests
    into.num_good_requests += window.num_good_requests
