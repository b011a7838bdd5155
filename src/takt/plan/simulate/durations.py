"""How long the simulated steps take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Protocol

from takt.plan.errors import PlanInputError, require_positive
from takt.scheduler.step_time import StepFeatures


class StepDuration(Protocol):
    """Nanoseconds of a step with these features, over all pipeline stages together."""

    def predict_ns(self, features: StepFeatures) -> float: ...


class NoisyDuration:
    """Multiplies another's durations by `bias` and by log-normal noise of mean 1.

    `noise` is the noise's coefficient of variation; draws are equal for equal seeds.
    """

    def __init__(
        self, duration: StepDuration, *, noise: float = 0.0, bias: float = 1.0, seed: int = 0
    ) -> None:
        if not math.isfinite(noise) or noise < 0:
            raise PlanInputError(f"the noise of steps must be a number of at least 0, got {noise}")
        if not math.isfinite(bias) or bias <= 0:
            raise PlanInputError(f"the bias of steps must be a number above 0, got {bias}")
        self._predict_ns = duration.predict_ns
        self._bias = bias
        variance = math.log1p(noise**2)
        self._sigma = math.sqrt(variance)
        self._mu = -variance / 2
        self._lognormal: Callable[[float, float], float] = random.Random(seed).lognormvariate

    def predict_ns(self, features: StepFeatures) -> float:
        duration = self._predict_ns(features) * self._bias
        return duration * self._lognormal(self._mu, self._sigma) if self._sigma else duration


class DisturbedDuration:
    """Multiplies another's durations by what a shared host does to them.

    The body is log-normal of median 1 and `noise`; a share `outliers` of steps takes 2 to 3 times
    as long besides; and for stretches of `slow_s` seconds of steps, each after 2 to 4 times as
    much, all take `slowness` times as long. Draws are equal for equal seeds.
    """

    def __init__(
        self,
        duration: StepDuration,
        *,
        noise: float = 0.06,
        outliers: float = 0.01,
        slowness: float = 1.0,
        slow_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        for name, value in (("noise", noise), ("share of outliers", outliers)):
            if not 0 <= value <= 1:
                raise PlanInputError(f"the {name} of steps lies within 0 and 1, got {value}")
        require_positive("the slowness of steps", slowness)
        require_positive("the length of slow stretches", slow_s)
        self._predict_ns = duration.predict_ns
        self._noise, self._outliers = noise, outliers
        self._slowness, self._slow_s = slowness, slow_s
        self._random = random.Random(seed)
        self._is_slow = False
        self._left_ns = self._stretch_ns()

    def predict_ns(self, features: StepFeatures) -> float:
        draw = self._random
        duration = self._predict_ns(features) * draw.lognormvariate(0.0, self._noise)
        if draw.random() < self._outliers:
            duration *= draw.uniform(2.0, 3.0)
        if self._is_slow:
            duration *= self._slowness
        self._left_ns -= duration
        if self._left_ns <= 0:
            self._is_slow = not self._is_slow
            self._left_ns = self._stretch_ns()
        return duration

    def _stretch_ns(self) -> float:
        return self._slow_s * 1e9 * (1.0 if self._is_slow else self._random.uniform(2.0, 4.0))
