"""The machine's speed at the moment, from the last steps.

Neighbours on a shared host, heat and frequency make all steps slower or faster for milliseconds or
for minutes. The median of the last few ratios of measured to modelled follows that, whatever
single steps do; how many are best depends on what disturbs, so that several memories are kept, and
the one that has lately predicted best is believed.
"""

from __future__ import annotations

from collections import deque

MEMORIES = (3, 9, 33)
"""Steps that each median is over, shortest first."""

_GAIN = 0.02
_MOST_ERROR = 0.5
"""A step that was further off counts as so much: it was an outlier for any of them."""
_BETTER = 0.98
"""Share of the believed one's error that another has to be below to take its place."""


class Drift:
    """A factor common to all steps; 1 where the model is right in the median."""

    __slots__ = ("_believed", "_errors", "_medians", "_recent", "factor")

    def __init__(self) -> None:
        self._recent: deque[float] = deque([1.0], maxlen=MEMORIES[-1])
        self._medians = [1.0] * len(MEMORIES)
        self._errors = [0.0] * len(MEMORIES)
        self._believed = len(MEMORIES) - 1
        self.factor = 1.0

    @property
    def shortest(self) -> float:
        """The median of the very last steps."""
        return self._medians[0]

    def add(self, ratio: float) -> None:
        """Takes measured / modelled of a step, without this factor."""
        medians, errors, recent = self._medians, self._errors, self._recent
        recent.append(ratio)
        last = list(recent)
        best = self._believed
        for i, memory in enumerate(MEMORIES):
            error = min(abs(ratio / medians[i] - 1.0), _MOST_ERROR)
            errors[i] += _GAIN * (error - errors[i])
            # The lower one of two: a step alone, at the start, moves nothing.
            middle = sorted(last[-memory:])
            medians[i] = middle[(len(middle) - 1) // 2]
        for i in range(len(MEMORIES)):
            if errors[i] < _BETTER * errors[best]:
                best = i
        self._believed = best
        self.factor = medians[best]
