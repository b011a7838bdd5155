"""Steps as they were measured: a model of their time, and how far real ones were from it."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from takt.plan.errors import PlanInputError
from takt.scheduler.step_kind import NUM_KINDS, kind_of
from takt.scheduler.step_time import StepFeatures, StepTimeModel

_DECODES = (0, 4, 8, 12, 16, 20, 24, 28, 31, 48, 64)
"""A step's sort: its kind, and up to which of these its decodes are. The time is a staircase in the
rows, with a height for each kernel, which no linear model has: 32 may take less than 30."""
_NUM_SORTS_OF_KIND = len(_DECODES) + 1
_LEAST_OF_SORT = 30
"""Residuals of one sort of step; with fewer, those of its kind stand in, or those of all."""
_MAX_KNOWN = 1024
"""Residuals that a calibration leaves."""

Samples = Sequence[tuple[StepFeatures, float]]
"""Features and nanoseconds."""


def sort_of(features: StepFeatures) -> int:
    return kind_of(features) * _NUM_SORTS_OF_KIND + bisect_left(_DECODES, features[0])


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """A duration that is expected; `drawn` are those of single steps."""

    model: StepTimeModel
    ratios: tuple[tuple[float, ...], ...]
    """Measured / predicted, of steps of each sort as `sort_of` numbers them."""
    means: tuple[float, ...]
    """Of those, by sort: outliers make a step longer in the mean than in the median."""

    @classmethod
    def of(cls, model: StepTimeModel, samples: Samples) -> MeasuredSteps:
        """With the residuals of these steps. Raises `PlanInputError` without any."""
        return cls.of_ratios(
            model,
            [
                (sort_of(features), duration_ns / max(model.predict_ns(features), 1.0))
                for features, duration_ns in samples
            ],
        )

    @classmethod
    def of_ratios(cls, model: StepTimeModel, ratios: Sequence[tuple[int, float]]) -> MeasuredSteps:
        """With these residuals, each with the sort of its step."""
        by_sort: list[list[float]] = [[] for _ in range(NUM_KINDS * _NUM_SORTS_OF_KIND)]
        by_kind: list[list[float]] = [[] for _ in range(NUM_KINDS)]
        for sort, ratio in ratios:
            by_sort[sort].append(ratio)
            by_kind[sort // _NUM_SORTS_OF_KIND].append(ratio)
        pooled = [ratio for _, ratio in ratios]
        if not pooled:
            raise PlanInputError("there are no measured steps whose residuals could be drawn")
        kinds = [tuple(found if len(found) >= _LEAST_OF_SORT else pooled) for found in by_kind]
        kept = tuple(
            tuple(found) if len(found) >= _LEAST_OF_SORT else kinds[sort // _NUM_SORTS_OF_KIND]
            for sort, found in enumerate(by_sort)
        )
        return cls(model, kept, tuple(sum(found) / len(found) for found in kept))

    def predict_ns(self, features: StepFeatures) -> float:
        return self.model.predict_ns(features) * self.means[sort_of(features)]

    def known(self) -> StepTimeModel:
        """What an engine would know after a calibration with such steps."""
        ratios = sorted(ratio for ratios in set(self.ratios) for ratio in ratios)
        return StepTimeModel(self.model.pieces, tuple(ratios[:: -(-len(ratios) // _MAX_KNOWN)]))

    def drawn(self, seed: int) -> DrawnDuration:
        return DrawnDuration(self, seed)


@dataclass(frozen=True, slots=True)
class MeasuredHalves:
    """Two models, each with the residuals of steps that it has not seen; they take turns by chance,
    so that what one of them is off by is in the durations as often as in the residuals."""

    halves: tuple[MeasuredSteps, MeasuredSteps]

    def predict_ns(self, features: StepFeatures) -> float:
        first, second = self.halves
        return (first.predict_ns(features) + second.predict_ns(features)) / 2

    def known(self) -> StepTimeModel:
        return self.halves[0].known()

    def drawn(self, seed: int) -> DrawnFromHalves:
        return DrawnFromHalves(self, seed)


class DrawnDuration:
    """Multiplies what the model predicts by a residual of a step of the same sort.

    So a simulated step is as often late, and by as much, as those that were measured; residuals
    are drawn independently. What made many steps in a row slow is a matter of `SpeedTrace`.
    """

    def __init__(self, measured: MeasuredSteps, seed: int) -> None:
        self._predict_ns = measured.model.predict_ns
        self._ratios = measured.ratios
        self._choice = random.Random(seed).choice

    def predict_ns(self, features: StepFeatures) -> float:
        return self._predict_ns(features) * self._choice(self._ratios[sort_of(features)])


class DrawnFromHalves:
    """Each step as one of the two halves has it."""

    def __init__(self, measured: MeasuredHalves, seed: int) -> None:
        self._halves = [half.drawn(2 * seed + side) for side, half in enumerate(measured.halves)]
        self._choice = random.Random(seed).choice

    def predict_ns(self, features: StepFeatures) -> float:
        return self._choice(self._halves).predict_ns(features)
