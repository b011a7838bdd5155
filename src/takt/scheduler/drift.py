"""The machine's speed at the moment, from the last steps.

Neighbours on a shared host, heat and frequency make all steps slower or faster for milliseconds or
for minutes. The median of the last few ratios of measured to modelled follows that, whatever
single steps do; how many are best depends on what disturbs, so that several memories are kept, and
the one that has lately predicted best is believed.
"""

from __future__ import annotations

from takt.scheduler.residuals import RecentRatios

MEMORIES = (3, 9, 33)
"""Steps that each median is over, shortest first."""

_GAIN = 0.02
_MOST_ERROR = 0.5
"""A step that was further off counts as so much: it was an outlier for any of them."""
_BETTER = 0.98
"""Share of the believed one's error that another has to be below to take its place."""


class Drift:
    """A factor common to all steps; 1 where the model is right in the median."""

    __slots__ = ("_believed", "_errors", "_medians", "_windows", "factor")

    def __init__(self) -> None:
        # A first step alone moves nothing: its median with this is the lower one.
        self._windows = [RecentRatios(memory, (1.0,)) for memory in MEMORIES]
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
        medians, errors, best = self._medians, self._errors, self._believed
        for i, window in enumerate(self._windows):
            error = abs(ratio / medians[i] - 1.0)
            if error > _MOST_ERROR:
                error = _MOST_ERROR
            errors[i] += _GAIN * (error - errors[i])
            window.add(ratio)
            medians[i] = window.median
        for i, error in enumerate(errors):
            if error < _BETTER * errors[best]:
                best = i
        self._believed = best
        self.factor = medians[best]
