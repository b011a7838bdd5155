"""How far steps are from their prediction: quantiles of measured / predicted over the last ones."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

WINDOW = 512
"""Steps that a kind's P99 rests on: five lie beyond, and some seconds make it forget."""

POOL = 2048
"""Steps of all kinds that shares of late ones rest on: what holds steps up is rare."""

_GAIN = 0.002
_MAX_LEVEL = 1.02


class RecentRatios:
    """A sliding window, kept in order: an insertion is a bisection and a move of some KB."""

    __slots__ = ("_ascending", "_order", "_size")

    def __init__(self, size: int, ratios: Iterable[float] = ()) -> None:
        self._size = size
        self._order: deque[float] = deque(list(ratios)[-size:])
        self._ascending = sorted(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, ratio: float) -> None:
        if len(self._order) == self._size:
            del self._ascending[bisect_left(self._ascending, self._order.popleft())]
        self._order.append(ratio)
        insort(self._ascending, ratio)

    def at(self, late_share: float) -> float:
        """The ratio that all but a share `late_share` of steps stay within; 1 if none was seen."""
        count = len(self._ascending)
        if count == 0:
            return 1.0
        rank = min(math.ceil((1.0 - late_share) * (count + 1)), count)
        return self._ascending[max(rank - 1, 0)]

    @property
    def median(self) -> float:
        """The lower one of two; there must be one."""
        return self._ascending[(len(self._ascending) - 1) // 2]

    def late_share(self, ratio: float) -> float:
        """Share of steps that took longer than `ratio` times their prediction."""
        count = len(self._ascending)
        return (count - bisect_right(self._ascending, ratio)) / (count + 1)


class ResidualQuantile(RecentRatios):
    """One quantile of such a window.

    The level itself is corrected by what was covered (adaptive conformal inference, Gibbs and
    Candes 2021): in the long run a share `quantile` of steps lies within, however residuals drift.
    """

    __slots__ = ("_level", "_target", "value")

    def __init__(self, quantile: float, ratios: Iterable[float] = ()) -> None:
        super().__init__(WINDOW, ratios)
        self._target = quantile
        self._level = quantile
        self.value = 1.0
        """The ratio that the next step is expected to stay within."""
        self._refresh()

    def add(self, ratio: float) -> None:
        """Takes the ratio of a step that `value` was the bound of."""
        missed = 1.0 if ratio > self.value else 0.0
        level = self._level + _GAIN * (missed - (1.0 - self._target))
        self._level = min(max(level, self._target - 0.02), _MAX_LEVEL)
        super().add(ratio)
        self._refresh()

    def _refresh(self) -> None:
        count = len(self._ascending)
        if count == 0:
            return
        # The k-th of n exchangeable values bounds the next one with probability k / (n + 1).
        rank = math.ceil(self._level * (count + 1))
        if rank <= count:
            self.value = self._ascending[max(rank - 1, 0)]
        else:
            largest = self._ascending[-1]
            self.value = largest * (1.0 + max(self._level - 1.0, 0.0))
