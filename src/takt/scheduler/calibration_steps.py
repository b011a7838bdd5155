"""The steps that a step-time model is first fitted to."""

from __future__ import annotations

from dataclasses import dataclass

from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.step_time import StepFeatures


@dataclass(frozen=True, slots=True)
class DummyStep:
    """`num_decode_seqs` decodes at `context` tokens each (after the step), and a piece of a prompt
    of `num_prefill_tokens` of which `prefill_start` are computed."""

    num_decode_seqs: int
    context: int
    num_prefill_tokens: int = 0
    prefill_start: int = 0

    @property
    def features(self) -> StepFeatures:
        contexts = self.num_decode_seqs * self.context
        tokens, start = self.num_prefill_tokens, self.prefill_start
        if tokens == 0:
            return StepFeatures(self.num_decode_seqs, 0, contexts, contexts)
        end = start + tokens
        pairs = contexts + tokens * (start + end + 1) // 2
        return StepFeatures(self.num_decode_seqs, tokens, contexts + end, pairs)

    @property
    def num_tokens(self) -> int:
        return self.num_decode_seqs + self.num_prefill_tokens


FLOOR_STEP = DummyStep(1, 32)
"""The least that a server can do: one sequence with a short context."""

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CHUNKS = (8, 16, 32, 64, 128, 256, 512)
_MIXED = ((1, 8), (2, 24), (4, 16), (4, 64), (16, 32), (16, 128), (64, 64), (8, 256))


def calibration_steps(limits: SchedulerLimits) -> list[DummyStep]:
    """Steps within the limits, small ones first: those that a slow machine has time for."""
    longest = limits.max_model_len
    far = min(1024, longest // 2)
    near = min(32, longest)
    steps = [FLOOR_STEP] if near == FLOOR_STEP.context else [DummyStep(1, near)]
    for batch in _BATCHES:
        steps += [DummyStep(batch, context) for context in (near, max(far // 2, 1))]
    steps.append(DummyStep(1, max(far, 1)))
    for chunk in _CHUNKS:
        steps += [DummyStep(0, 0, chunk), DummyStep(0, 0, chunk, far)]
    steps += [DummyStep(batch, max(far // 2, 1), chunk) for batch, chunk in _MIXED]
    fitting = [
        step
        for step in dict.fromkeys(steps)
        if step.num_decode_seqs + (step.num_prefill_tokens > 0) <= limits.max_num_seqs
        and step.num_tokens <= limits.max_num_batched_tokens
        and step.context <= longest
        and step.prefill_start + step.num_prefill_tokens <= longest
    ]
    return sorted(fitting, key=lambda step: step.num_tokens)
