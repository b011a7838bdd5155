"""An engine's step record as samples for a step-time model."""

from __future__ import annotations

from takt.observe.step_record import StepPart, StepRecord
from takt.scheduler.step_time import StepFeatures


def step_samples(
    record: StepRecord, part: StepPart = StepPart.TOTAL
) -> list[tuple[StepFeatures, float]]:
    """(features, nanoseconds) of every step that is held, oldest first; steps of no time left out.

    The whole step by default, scheduling and update included: a gap between tokens spans them.
    """
    columns = (
        record.column(name).tolist()
        for name in (
            "num_decode_seqs",
            "num_prefill_tokens",
            "num_kv_tokens_read",
            "num_qk_pairs",
        )
    )
    durations = record.durations_ns(part).tolist()
    return [
        (StepFeatures(*features), float(duration))
        for *features, duration in zip(*columns, durations, strict=True)
        if duration > 0
    ]
