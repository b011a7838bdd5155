"""Measures at start-up how long steps take, within a bounded time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from takt.clock import Clock
from takt.scheduler.calibration_steps import DummyStep
from takt.scheduler.step_time import StepFeatures, StepTimeModel

BUDGET_NS = 2_400_000_000
"""For all steps; start-up may take 3 s longer with calibration, the fit and the file included."""

_FLOOR_SAMPLES = 24
_ROUNDS = 4
_FLOOR_PART = 6
"""Of the time: what the samples of the floor may take."""
_LEAST_SAMPLES = 5
_WARM_UP_STEPS = 3
_DOUBT = 0.01
"""Share of steps beyond a P99; and how seldom a target may be called too small that is not."""
_SLOWDOWN = 2.0
"""A step may take so many times as long as its tokens lead to expect; else it is not begun."""

_STEADY_MEAN_ERROR = 0.25
"""A quiet machine's is a few percent, its outliers included."""

RunStep = Callable[[DummyStep], int]


@dataclass(frozen=True, slots=True)
class Calibration:
    model: StepTimeModel
    floor_ns: int
    """What the P99 of the shortest step there is exceeds: no P99 below it can be held."""
    num_steps: int
    seconds: float

    @property
    def mean_error(self) -> float:
        """Mean of |measured / predicted - 1| over the steps measured; 0 without any."""
        ratios = self.model.residual_ratios
        return sum(abs(ratio - 1) for ratio in ratios) / max(len(ratios), 1)

    @property
    def summary(self) -> str:
        """What predictions rest on, in one line for whoever set a target."""
        return (
            f"a sequence alone {self.floor_ns / 1e6:.2f} ms or more; predictions off by "
            f"{100 * self.mean_error:.1f} % in the mean, P99 "
            f"{self.model.residual_ratio(0.99):.2f} x predicted ({self.num_steps} steps measured)"
        )

    @property
    def is_steady(self) -> bool:
        """Whether the machine was quiet enough for another start to rely on it."""
        return self.mean_error <= _STEADY_MEAN_ERROR


def calibrate(shapes: list[DummyStep], run_step: RunStep, clock: Clock) -> Calibration:
    """Runs each shape a few times, small ones first, as long as the time lasts.

    A shape that would take more than what is left is skipped: a slow machine's model rests on its
    smaller steps, and takes the larger ones to cost in proportion. A shape's samples count as their
    median, so that one disturbed run does not tilt the fit; the residuals are those of all.
    """
    start_ns = clock.now_ns()

    def left_ns() -> int:
        return BUDGET_NS - (clock.now_ns() - start_ns)

    floor_shape = shapes[0]
    for _ in range(_WARM_UP_STEPS):
        run_step(floor_shape)
    floor: list[float] = []
    floor_ends_ns = BUDGET_NS - BUDGET_NS // _FLOOR_PART
    while len(floor) < _FLOOR_SAMPLES and (
        len(floor) < _LEAST_SAMPLES or left_ns() > floor_ends_ns
    ):
        floor.append(float(run_step(floor_shape)))
    times: dict[DummyStep, list[float]] = {floor_shape: floor}
    per_token_ns = min(floor)
    for turn in range(_ROUNDS):
        for shape in shapes:
            expected = min(times[shape]) if shape in times else per_token_ns * shape.num_tokens
            needed = turn == 0 and len(times) < _LEAST_SAMPLES
            if not needed and expected * _SLOWDOWN > left_ns():
                continue
            taken = float(run_step(shape))
            times.setdefault(shape, []).append(taken)
            per_token_ns = taken / shape.num_tokens
    samples: list[tuple[StepFeatures, float]] = []
    every: list[tuple[StepFeatures, float]] = []
    for shape, taken_ns in times.items():
        samples.append((shape.features, _middle(taken_ns)))
        every += [(shape.features, one) for one in taken_ns]
    samples += _in_proportion(shapes, times)
    model = StepTimeModel.fit(samples).with_residuals(every)
    return Calibration(
        model=model,
        floor_ns=round(_exceeded_by_p99(floor)),
        num_steps=len(every) + _WARM_UP_STEPS,
        seconds=(clock.now_ns() - start_ns) / 1e9,
    )


def _exceeded_by_p99(samples: list[float]) -> float:
    """A value that the samples' P99 is not below, or these samples had a chance of 1 % or less.

    A single disturbed sample of a few says nothing of a P99: of n samples, the number beyond the
    P99 is binomial with n and 0.01. The k-th largest is returned for the smallest k that so many,
    or more, exceed it with a probability of 1 % at most.
    """
    n = len(samples)
    beyond = 1.0  # probability that k or more samples lie beyond the P99
    for k in range(n):
        if beyond <= _DOUBT:
            return sorted(samples)[n - k]
        beyond -= math.comb(n, k) * _DOUBT**k * (1 - _DOUBT) ** (n - k)
    return min(samples)


def _in_proportion(
    shapes: list[DummyStep], times: dict[DummyStep, list[float]]
) -> list[tuple[StepFeatures, float]]:
    """What there was no time for, from the largest step of its kind that was run.

    At least as long as it really is: a fixed part is counted again with each piece. Without it a
    fit may take the tokens of prompts to cost nothing; service corrects it soon.
    """
    samples = []
    for is_prefill in (False, True):
        kind = [
            shape
            for shape in shapes
            if (shape.num_prefill_tokens > 0) is is_prefill
            and (shape.num_decode_seqs == 0) is is_prefill
        ]
        run = [shape for shape in kind if shape in times]
        if not run:
            continue
        largest = max(run, key=lambda shape: shape.num_tokens)
        per_token_ns = _middle(times[largest]) / largest.num_tokens
        samples += [
            (shape.features, per_token_ns * shape.num_tokens)
            for shape in kind
            if shape not in times and shape.num_tokens > largest.num_tokens
        ]
    return samples


def _middle(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
