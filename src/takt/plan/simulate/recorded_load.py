"""From the steps that an engine made under a load to their replay, without judging by themselves.

Time is cut into stretches. A model that is fitted to every other one judges those between, and one
fitted to those judges the rest: how far steps are from it, and how fast the machine was. No step is
compared with a model that has seen it, and a machine that became slower meanwhile, which no plan
could know of, is slower in the replay too.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from takt.plan.errors import PlanInputError
from takt.plan.simulate.measured_steps import MeasuredHalves, MeasuredSteps, sort_of
from takt.plan.simulate.speed_trace import SpeedTrace
from takt.scheduler.step_kind import kind_of
from takt.scheduler.step_time import StepFeatures, StepTimeModel

_STEPS_PER_STRETCH = 50
_STRETCH_NS = (0.25e9, 30e9)
"""Shortest and longest stretch; neighbours on a shared host come and go within seconds."""
_GRID_NS = 0.25e9
"""Of the speed over time, between the middles of stretches."""

_POLISHING_ROUNDS = 5

_LEAST_STEPS = 20
"""Of a stretch, whose median is to tell the machine's speed."""

MAX_OF_KIND = 200
"""Samples of each kind of step in a fit, evenly among them: it is in plain Python, and large steps,
which are few, make the P99."""


class RecordedStep(NamedTuple):
    end_ns: float
    """On the clock of the arrivals, as their times are; steps are in the order of these."""
    features: StepFeatures
    duration_ns: float


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """What a simulation of the same load needs."""

    steps: MeasuredHalves
    speed: SpeedTrace
    autocorrelation: float
    """Of one residual with the next, both bounded: what drawing them one by one leaves out."""


def learn(recorded: Sequence[RecordedStep]) -> RecordedLoad:
    """Raises `PlanInputError` for a load that was too short to be halved."""
    if not recorded:
        raise PlanInputError("no step was recorded")
    stretches = dict(enumerate(_stretches(recorded)))
    if len(stretches) < 2:
        raise PlanInputError(
            f"{len(recorded)} steps are too few to learn from one half and to judge by the other"
        )
    halves = [{n: steps for n, steps in stretches.items() if n % 2 == side} for side in (0, 1)]
    models = [_fit(halves[1]), _fit(halves[0])]  # each for the half that it has not seen
    factors: dict[int, float] = {}
    judged, ordered = [], []
    for model, half in zip(models, halves, strict=True):
        factors |= (of_half := _factors(model, half))
        ratios = [
            (number, sort, ratio / of_half[number])
            for number, steps in half.items()
            for sort, ratio in _ratios(model, steps)
        ]
        judged.append(MeasuredSteps.of_ratios(model, [(sort, ratio) for _, sort, ratio in ratios]))
        ordered += ratios
    ordered.sort(key=lambda one: one[0])
    grid_ns = np.arange(0.0, max(recorded[-1].end_ns, 0.0) + _GRID_NS, _GRID_NS)
    middles_ns = [(steps[0].end_ns + steps[-1].end_ns) / 2 for steps in stretches.values()]
    filled = np.interp(grid_ns + _GRID_NS / 2, middles_ns, [factors[n] for n in stretches])
    return RecordedLoad(
        MeasuredHalves((judged[0], judged[1])),
        SpeedTrace(_GRID_NS, tuple(filled.tolist())),
        _autocorrelation([ratio for _, _, ratio in ordered]),
    )


def _stretches(recorded: Sequence[RecordedStep]) -> list[list[RecordedStep]]:
    """Of as many steps each, so that long ones are judged as well as short ones; those in which
    there was next to nothing to do are left out."""
    shortest_ns, longest_ns = _STRETCH_NS
    found: list[list[RecordedStep]] = [[]]
    for step in recorded:
        current = found[-1]
        if current:
            length_ns = step.end_ns - current[0].end_ns
            is_full = len(current) >= _STEPS_PER_STRETCH and length_ns >= shortest_ns
            if is_full or length_ns > longest_ns:
                current = []
                found.append(current)
        current.append(step)
    return [steps for steps in found if len(steps) >= _LEAST_STEPS]


def fit_thinned(samples: Sequence[tuple[StepFeatures, float]]) -> StepTimeModel:
    by_kind: dict[int, list[tuple[StepFeatures, float]]] = {}
    for sample in samples:
        by_kind.setdefault(kind_of(sample[0]), []).append(sample)
    thinned = [found[:: -(-len(found) // MAX_OF_KIND)] for found in by_kind.values()]
    return StepTimeModel.fit([sample for found in thinned for sample in found])


def _fit(stretches: dict[int, list[RecordedStep]]) -> StepTimeModel:
    """Twice: with what the first model says of the machine's speed in each stretch, once more."""
    all_steps = itertools.chain.from_iterable(stretches.values())
    model = fit_thinned([(step.features, step.duration_ns) for step in all_steps])
    factors = _factors(model, stretches)
    return fit_thinned(
        [
            (step.features, step.duration_ns / factors[number])
            for number, steps in stretches.items()
            for step in steps
        ]
    )


def _ratios(model: StepTimeModel, steps: Iterable[RecordedStep]) -> list[tuple[int, float]]:
    """Sort, and measured / predicted, of each step."""
    return [(sort_of(s.features), s.duration_ns / model.predict_ns(s.features)) for s in steps]


def _factors(model: StepTimeModel, stretches: dict[int, list[RecordedStep]]) -> dict[int, float]:
    """The machine's speed in each stretch: the median of measured / predicted, what is usual for
    the step's sort apart, so that stretches with many prompts do not look slow or fast.

    Stretches and sorts take turns (Tukey's median polish): large steps may be those of slow times.
    """
    ratios = {number: _ratios(model, steps) for number, steps in stretches.items()}
    usual: dict[int, float] = {}
    factors: dict[int, float] = {}
    for _ in range(_POLISHING_ROUNDS):
        factors = {
            number: statistics.median(ratio / usual.get(sort, 1.0) for sort, ratio in pairs)
            for number, pairs in ratios.items()
        }
        of_sort: dict[int, list[float]] = {}
        for number, pairs in ratios.items():
            for sort, ratio in pairs:
                of_sort.setdefault(sort, []).append(ratio / factors[number])
        usual = {sort: statistics.median(found) for sort, found in of_sort.items()}
    return factors


def _autocorrelation(ratios: Sequence[float]) -> float:
    values = np.clip(np.array(ratios), 0.5, 2.0)
    if len(values) < 3 or values.std() == 0.0:
        return 0.0
    return float(np.corrcoef(values[:-1], values[1:])[0, 1])
