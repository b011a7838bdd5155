"""How long the simulated steps take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Protocol

from takt.plan.errors import PlanInputError
from takt.scheduler.step_time import StepFeatures, StepTimeModel


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


class ResampledDuration:
    """A fitted model's prediction times a residual drawn from those it was fitted with.

    So a simulated step is as often late, and by as much, as those that were measured; residuals
    are drawn independently, whatever made them late together.
    """

    def __init__(self, model: StepTimeModel, *, seed: int = 0) -> None:
        if not model.residual_ratios:
            raise PlanInputError("the step-time model has no residuals to draw from")
        self._model = model
        self._choice = random.Random(seed).choice

    def predict_ns(self, features: StepFeatures) -> float:
        return self._model.predict_ns(features) * self._choice(self._model.residual_ratios)
