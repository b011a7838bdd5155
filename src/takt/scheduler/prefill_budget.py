"""The largest piece of a prompt that a step can hold and still end in time."""

from __future__ import annotations

from typing import Protocol

from takt.scheduler.step_time import StepFeatures


class StepPredictor(Protocol):
    """What pace asks of a step-time model."""

    def predict_ns(self, features: StepFeatures) -> float: ...

    def p99_ns(self, features: StepFeatures) -> float: ...


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
    predictor: StepPredictor, step: StepFeatures, start: int, most: int, limit_ns: float
) -> int:
    """Most tokens, up to `most`, with which the step's predicted P99 is within `limit_ns`.

    0 if not even one is. Where quantiles of neighbouring kinds of steps make the P99 dip, what is
    returned is within the limit, though not always the largest that is.
    """
    if most <= 0 or predictor.p99_ns(with_chunk(step, start, 1)) > limit_ns:
        return 0
    if predictor.p99_ns(with_chunk(step, start, most)) <= limit_ns:
        return most
    fits, exceeds = 1, most
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if predictor.p99_ns(with_chunk(step, start, middle)) <= limit_ns:
            fits = middle
        else:
            exceeds = middle
    return fits
