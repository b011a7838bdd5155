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
    if most <= 0 or (low_ns := predictor.p99_ns(with_chunk(step, start, 1))) > limit_ns:
        return 0
    if (high_ns := predictor.p99_ns(with_chunk(step, start, most))) <= limit_ns:
        return most
    fits, exceeds, halves = 1, most, False
    while (width := exceeds - fits) > 1:
        # Nearly linear, so that a straight line mostly hits: half as many predictions as by halving
        # alone, which goes on where it did not.
        middle = (fits + exceeds) // 2
        if not halves:
            middle = fits + int(width * (limit_ns - low_ns) / (high_ns - low_ns))
            middle = min(max(middle, fits + 1), exceeds - 1)
        time_ns = predictor.p99_ns(with_chunk(step, start, middle))
        if time_ns <= limit_ns:
            fits, low_ns = middle, time_ns
        else:
            exceeds, high_ns = middle, time_ns
        halves = 2 * (exceeds - fits) > width
    return fits
