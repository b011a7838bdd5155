"""What a scheduler decides for one step, and what it is told when the step has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from takt.kvcache.block_copy import BlockCopy as BlockCopy
from takt.scheduler.request import Request


class ScheduledRequest(msgspec.Struct, gc=False):
    """One sequence's share of a step. A struct, as others here that each token needs one of: it is
    made in a third of a dataclass's time, and garbage collection does not look at it.

    The step computes tokens `start .. start + num_tokens` of `request` (its `num_computed_tokens`
    when it was scheduled, and the number scheduled now). `samples` tells whether the last of them
    yields a new token. `forks` are the siblings (choices 1 .. n-1) that sample their first token
    from the same row; they own block tables from the next step on.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    forks: Sequence[Request] = ()


@dataclass(slots=True)
class SchedulerOutput:
    """One step. Ids in the same order as rows of the step's batch."""

    step_id: int
    scheduled: list[ScheduledRequest]
    block_copies: list[BlockCopy]
    total_num_scheduled_tokens: int
    num_prefill_tokens: int
    preempted: list[Request]

    @property
    def is_empty(self) -> bool:
        return not self.scheduled


class SampledToken(msgspec.Struct, gc=False):
    """One new token of one request, as the runner read it from the step's output."""

    request: Request
    token_id: int


@dataclass(slots=True)
class FinishedRequest:
    request: Request
    finish_reason: str  # "stop" | "length" | "abort"
    stop_token_id: int | None
