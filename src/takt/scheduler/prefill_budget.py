"""The largest piece of a prompt that a step can hold and still end in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from takt.scheduler.step_time import StepFeatures


class StepPredictor(Protocol):
    """What pace asks of a step-time model."""

    def predict_ns(self, features: StepFeatures) -> float: ...

    def ratio(self, late_share: float) -> float:
        """Time / prediction that all but a share `late_share` of steps stay within now."""
        ...

    def late_share(self, features: StepFeatures, limit_ns: float) -> float:
        """Share of such steps that take longer than `limit_ns` now."""
        ...


class StepBound(NamedTuple):
    """A step may exceed `limit_ns` with a probability of `late_share`; 0 means: no prompt at all.

    The decodes by themselves exceed it with one of `base_share`.
    """

    limit_ns: float
    late_share: float
    base_share: float = 0.0
    target_ns: int = 0
    """Of the gap, from which the limit comes."""


def with_chunk(step: StepFeatures, start: int, num_tokens: int) -> StepFeatures:
    """The step with `num_tokens` more of a prompt, `start` tokens of which are computed."""
    end = start + num_tokens
    return StepFeatures(
        step.num_decode_seqs,
        step.num_prefill_tokens + num_tokens,
        step.num_kv_tokens_read + end,
        step.num_qk_pairs + num_tokens * (start + end + 1) // 2,
    )


def largest_chunk(
    predictor: StepPredictor,
    step: StepFeatures,
    start: int,
    most: int,
    bounds: Sequence[StepBound],
) -> int:
    """Most tokens, up to `most`, with which the step keeps all the bounds.

    0 if not even one does.
    """
    if most <= 0 or (low := _load(predictor, with_chunk(step, start, 1), bounds)) > 1.0:
        return 0
    if (high := _load(predictor, with_chunk(step, start, most), bounds)) <= 1.0:
        return most
    fits, exceeds, halves = 1, most, False
    while (width := exceeds - fits) > 1:
        # Nearly linear, so that a straight line mostly hits: half as many predictions as by halving
        # alone, which goes on where it did not.
        middle = (fits + exceeds) // 2
        if not halves:
            middle = fits + int(width * (1.0 - low) / (high - low))
            middle = min(max(middle, fits + 1), exceeds - 1)
        load = _load(predictor, with_chunk(step, start, middle), bounds)
        if load <= 1.0:
            fits, low = middle, load
        else:
            exceeds, high = middle, load
        halves = 2 * (exceeds - fits) > width
    return fits


def _load(predictor: StepPredictor, step: StepFeatures, bounds: Sequence[StepBound]) -> float:
    """Time over limit, for the bound that is nearest to being broken."""
    load, predicted = 0.0, predictor.predict_ns(step)
    for limit_ns, late_share, _, _ in bounds:
        # Never beyond what is expected, whatever may be risked: a miss is to be a small one.
        ratio = max(predictor.ratio(late_share), 1.0) if late_share else math.inf
        load = max(load, predicted * ratio / limit_ns)
    return load
