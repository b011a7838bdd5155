"""Quantiles of how far steps are from their prediction, over the last ones of their kind."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

WINDOW = 512
"""Steps that a quantile rests on: five lie beyond P99, and some seconds make it forget."""

_GAIN = 0.002
_MAX_LEVEL = 1.02


class ResidualQuantile:
    """One quantile of measured / predicted over a sliding window, kept as the steps come.

    The level itself is corrected by what was covered (adaptive conformal inference, Gibbs and
    Candes 2021): in the long run a share `quantile` of steps lies within, however residuals drift.
    An insertion is a bisection and a move of 4 KB.
    """

    __slots__ = ("_ascending", "_level", "_order", "_target", "value")

    def __init__(self, quantile: float, ratios: Iterable[float] = ()) -> None:
        self._target = quantile
        self._level = quantile
        self._order: deque[float] = deque(list(ratios)[-WINDOW:])
        self._ascending = sorted(self._order)
        self.value = 1.0
        """The ratio that the next step is expected to stay within."""
        self._refresh()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, ratio: float) -> None:
        """Takes the ratio of a step that `value` was the bound of."""
        missed = 1.0 if ratio > self.value else 0.0
        level = self._level + _GAIN * (missed - (1.0 - self._target))
        self._level = min(max(level, self._target - 0.02), _MAX_LEVEL)
        if len(self._order) == WINDOW:
            del self._ascending[bisect_left(self._ascending, self._order.popleft())]
        self._order.append(ratio)
        insort(self._ascending, ratio)
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
