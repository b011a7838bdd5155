"""Continuous batching as a queue: all requests share steps whose time grows with the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from takt.plan.errors import require_positive, require_whole
from takt.plan.queueing.validity import Validity

_MAX_ROUNDS = 200
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """The fixed point. A step that a token waits for holds its own sequence and those it meets."""

    mean_batch: float
    """Other sequences that a token's step holds on average."""
    step_s: float
    """Mean step, prompts included."""
    decode_s: float
    mixed_s: float
    """A step that also computes a piece of a prompt."""
    mixed_share: float
    """Part of the steps that do."""


@dataclass(frozen=True, slots=True)
class BatchServer:
    """Poisson arrivals of requests that take `steps_per_prompt` mixed steps, then a decode step
    for each further token.

    `decode_s` and `mixed_s` give a step's seconds for a number of sequences. By Little's law the
    batch is B = lambda (O - 1) t with t the mean step, and t depends on B. Sequences come and go
    as in a server with room for all, so that the batch that a token meets is taken as Poisson.
    """

    arrivals_per_s: float
    output_tokens: int
    steps_per_prompt: float
    decode_s: Callable[[float], float]
    mixed_s: Callable[[float], float]
    max_batch: float

    def __post_init__(self) -> None:
        require_positive("the arrival rate", self.arrivals_per_s)
        require_positive("the steps of a prompt", self.steps_per_prompt)
        require_whole("the output's tokens", self.output_tokens)

    def solve(self) -> BatchLoad | None:
        """The smallest fixed point; None if the batch outgrows its limit or prompts all steps.

        The iteration starts at an empty server and rises, since more sequences are never faster.
        """
        batch = 0.0
        prompts = self.arrivals_per_s * self.steps_per_prompt
        for _ in range(_MAX_ROUNDS):
            decode, mixed = self.decode_s(1 + batch), self.mixed_s(1 + batch)
            room = 1 - prompts * (mixed - decode)
            if room <= 0:
                return None
            step = decode / room
            if prompts * step >= 1:
                return None
            grown = self.arrivals_per_s * (self.output_tokens - 1) * step
            if grown > self.max_batch:
                return None
            if abs(grown - batch) <= _TOLERANCE * max(1.0, grown):
                return BatchLoad(grown, step, decode, mixed, prompts * step)
            batch = grown
        return None  # so near to the limit that the batch still grows

    def itl_quantile_s(self, load: BatchLoad, quantile: float) -> float:
        """Over gaps: those of mixed steps count once they are more than 1 - `quantile` of all."""
        late = 1 - quantile
        share = load.mixed_share
        if share > late:
            return self.mixed_s(1 + poisson_quantile(load.mean_batch, 1 - late / share))
        level = min(quantile / (1 - share), 1 - 1e-6)
        return self.decode_s(1 + poisson_quantile(load.mean_batch, level))

    def validity(self, load: BatchLoad) -> Validity:
        if load.mean_batch > 0.8 * self.max_batch or load.mixed_share > 0.85:
            note = "near the limit a small error of the step time moves the batch far"
            return Validity(False, None, note)
        return Validity(True, 0.1, "mean batch and P99 gap within 10 % below 85 % of the capacity")


def poisson_quantile(mean: float, quantile: float) -> float:
    """Normal approximation with a continuity correction: B + z sqrt(B) + 1/2, at least 0."""
    if mean <= 0:
        return 0.0
    if mean < 30:
        return float(_small_poisson_quantile(mean, quantile))
    return max(0.0, mean + NormalDist().inv_cdf(quantile) * math.sqrt(mean) + 0.5)


def _small_poisson_quantile(mean: float, quantile: float) -> int:
    probability = cumulative = math.exp(-mean)
    count = 0
    while cumulative < quantile and count < 200:
        count += 1
        probability *= mean / count
        cumulative += probability
    return count
