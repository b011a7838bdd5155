"""When requests come and how long they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takt.plan.errors import PlanInputError, require_positive, require_whole
from takt.scheduler.slo import NO_SLO, SLO


class Arrival(NamedTuple):
    """One request: its time since the start and its lengths; the output counts its first token."""

    time_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    slo: SLO = NO_SLO
    """What the request asks for itself."""


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Token counts: the mean, and the coefficient of variation of a log-normal cut at `max_tokens`.

    0 variation is a fixed length. The mean is that before the cut; without a limit it is four
    times the mean.
    """

    mean_tokens: int
    variation: float = 0.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        require_whole("a mean length", self.mean_tokens)
        if not math.isfinite(self.variation) or self.variation < 0:
            raise PlanInputError(
                f"a length's variation must be a number of at least 0, got {self.variation}"
            )
        if self.max_tokens is not None and self.max_tokens < self.mean_tokens:
            raise PlanInputError(
                f"a length's limit, {self.max_tokens}, is below its mean, {self.mean_tokens}"
            )

    @property
    def limit(self) -> int:
        """Longest length that is drawn."""
        if self.variation == 0:
            return self.mean_tokens
        return self.max_tokens if self.max_tokens is not None else 4 * self.mean_tokens

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        if self.variation == 0:
            return np.full(count, self.mean_tokens, dtype=np.int64)
        sigma2 = math.log1p(self.variation**2)
        mu = math.log(self.mean_tokens) - sigma2 / 2
        drawn = rng.lognormal(mu, math.sqrt(sigma2), count)
        return np.clip(np.rint(drawn), 1, self.limit).astype(np.int64)


def poisson_arrivals(
    rate_per_s: float,
    num_requests: int,
    prompt: LengthDistribution,
    output: LengthDistribution,
    seed: int,
) -> list[Arrival]:
    """Requests at exponential distances; equal for equal seeds."""
    require_positive("the rate of requests", rate_per_s)
    require_whole("the number of requests", num_requests)
    require_whole("the seed", seed, 0)
    rng = np.random.default_rng(seed)
    gaps_ns = rng.exponential(1e9 / rate_per_s, num_requests)
    times = np.cumsum(gaps_ns).astype(np.int64)
    prompts = prompt.draw(rng, num_requests)
    outputs = output.draw(rng, num_requests)
    return [
        Arrival(*row)
        for row in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    ]
