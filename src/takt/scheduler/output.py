"""What a scheduler decides for one step, and what it is told when the step has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from takt.kvcache.block_copy import BlockCopy as BlockCopy
from takt.scheduler.decode_batch import DecodeBatch
from takt.scheduler.request import Request


class ScheduledRequest(msgspec.Struct, gc=False):
    """One sequence's share of a step.

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
    """One step. Decodes come first, in the batch's order, then `prompts`; rows likewise."""

    step_id: int
    batch: DecodeBatch
    """Who decodes: one token and one row each."""
    batch_step: int
    begins_block: bool
    """Whether the table of a sequence of the batch has changed since the step before."""
    num_decode_kv_tokens: int
    """Sum of the contexts that the decodes read, their own tokens included."""
    prompts: list[ScheduledRequest]
    """Whatever computes more than its newest token, or a token of its prompt."""
    num_prefill_tokens: int
    block_copies: list[BlockCopy]
    preempted: list[Request]

    @property
    def is_empty(self) -> bool:
        return not self.batch.requests and not self.prompts

    @property
    def num_decodes(self) -> int:
        return len(self.batch.requests)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens before the first one of a prompt; where phases differ, all that were generated."""
        num_tokens = len(self.batch.requests)
        for item in self.prompts:
            if item.start < item.request.num_given_tokens:
                break
            num_tokens += item.num_tokens
        return num_tokens

    @property
    def num_seqs(self) -> int:
        return len(self.batch.requests) + len(self.prompts)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return len(self.batch.requests) + self.num_prefill_tokens

    @property
    def num_sampled(self) -> int:
        """Tokens that the step brings: of decodes, of prompts that end, and of their forks."""
        return len(self.batch.requests) + sum(
            [item.samples + len(item.forks) for item in self.prompts]
        )

    @property
    def scheduled(self) -> list[ScheduledRequest]:
        """All sequences of the step, in order; the list is made for the caller."""
        starts = self.batch.starts(self.batch_step)
        items = [
            ScheduledRequest(request, start, 1, True)
            for request, start in zip(self.batch.requests, starts, strict=True)
        ]
        items += self.prompts
        return items


@dataclass(slots=True)
class FinishedRequest:
    request: Request
    finish_reason: str  # "stop" | "length" | "abort"
    stop_token_id: int | None
