"""How long the simulated steps take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Protocol

from takt.plan.errors import PlanInputError
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
