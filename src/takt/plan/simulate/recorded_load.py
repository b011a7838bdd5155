"""From the steps that an engine made under a load to their replay, without judging by themselves.

Time is cut into slices. Steps of every other one give the model; those between tell how far steps
are from it, and how fast the machine was. No step is compared with a model that has seen it, and a
machine that became slower in between, which no plan could know of, is slower in the replay too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from takt.plan.errors import PlanInputError
from takt.plan.simulate.measured_steps import MeasuredSteps
from takt.plan.simulate.speed_trace import SpeedTrace
from takt.scheduler.step_kind import kind_of
from takt.scheduler.step_time import StepFeatures, StepTimeModel

_STEPS_PER_SLICE = 100
_SLICE_NS = (0.5e9, 10e9)
"""Shortest and longest slice; neighbours on a shared host come and go within seconds."""

_LEAST_STEPS = 20
"""Of a slice, whose median is to tell the machine's speed."""

MAX_OF_KIND = 200
"""Samples of each kind of step in a fit, evenly among them: it is in plain Python, and large steps,
which are few, make the P99."""


class RecordedStep(NamedTuple):
    end_ns: float
    """On the clock of the arrivals, as their times are."""
    features: StepFeatures
    duration_ns: float


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """What a simulation of the same load needs."""

    steps: MeasuredSteps
    speed: SpeedTrace
    autocorrelation: float
    """Of one residual with the next, both bounded: what drawing them one by one leaves out."""


def learn(recorded: Sequence[RecordedStep]) -> RecordedLoad:
    """Raises `PlanInputError` for a load that was too short to be halved."""
    if not recorded:
        raise PlanInputError("no step was recorded")
    slice_ns = _STEPS_PER_SLICE * statistics.median(step.duration_ns for step in recorded)
    slice_ns = min(max(slice_ns, _SLICE_NS[0]), _SLICE_NS[1])
    slices: dict[int, list[RecordedStep]] = {}
    for step in recorded:
        slices.setdefault(max(int(step.end_ns // slice_ns), 0), []).append(step)
    full = {number for number, steps in slices.items() if len(steps) >= _LEAST_STEPS}
    if len(full) < 2 or len({number % 2 for number in full}) < 2:
        raise PlanInputError(
            f"{len(recorded)} steps are too few to learn from one half and to judge by the other"
        )
    model = _fit(slices, [number for number in full if number % 2 == 0])
    judged = {number: slices[number] for number in sorted(full) if number % 2}
    factors = _factors(model, judged)
    samples = [
        (step.features, step.duration_ns / factors[number])
        for number, steps in judged.items()
        for step in steps
    ]
    numbers = sorted(factors)
    filled = np.interp(range(max(slices) + 1), numbers, [factors[number] for number in numbers])
    return RecordedLoad(
        MeasuredSteps.of(model, samples),
        SpeedTrace(slice_ns, tuple(filled.tolist())),
        _autocorrelation([duration / model.predict_ns(features) for features, duration in samples]),
    )


def fit_thinned(samples: Sequence[tuple[StepFeatures, float]]) -> StepTimeModel:
    by_kind: dict[int, list[tuple[StepFeatures, float]]] = {}
    for sample in samples:
        by_kind.setdefault(kind_of(sample[0]), []).append(sample)
    thinned = [found[:: -(-len(found) // MAX_OF_KIND)] for found in by_kind.values()]
    return StepTimeModel.fit([sample for found in thinned for sample in found])


def _fit(slices: dict[int, list[RecordedStep]], numbers: Iterable[int]) -> StepTimeModel:
    """Twice: with what the first model says of the machine's speed in each slice, once more."""
    chosen = {number: slices[number] for number in sorted(numbers)}
    model = fit_thinned([(s.features, s.duration_ns) for steps in chosen.values() for s in steps])
    factors = _factors(model, chosen)
    return fit_thinned(
        [
            (step.features, step.duration_ns / factors[number])
            for number, steps in chosen.items()
            for step in steps
        ]
    )


def _factors(model: StepTimeModel, slices: dict[int, list[RecordedStep]]) -> dict[int, float]:
    """The machine's speed in each slice: the median of measured / predicted, what is usual for the
    step's kind apart, so that slices with many prompts do not look slow or fast."""
    ratios = {
        number: [(kind_of(s.features), s.duration_ns / model.predict_ns(s.features)) for s in steps]
        for number, steps in slices.items()
    }
    of_kind: dict[int, list[float]] = {}
    for pairs in ratios.values():
        for kind, ratio in pairs:
            of_kind.setdefault(kind, []).append(ratio)
    usual = {kind: statistics.median(found) for kind, found in of_kind.items()}
    return {
        number: statistics.median(ratio / usual[kind] for kind, ratio in pairs)
        for number, pairs in ratios.items()
    }


def _autocorrelation(ratios: Sequence[float]) -> float:
    values = np.clip(np.array(ratios), 0.5, 2.0)
    if len(values) < 3 or values.std() == 0.0:
        return 0.0
    return float(np.corrcoef(values[:-1], values[1:])[0, 1])
