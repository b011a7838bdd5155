"""One step while it is put together."""

from __future__ import annotations

from takt.scheduler.decode_batch import DecodeBatch
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.output import ScheduledRequest
from takt.scheduler.request import Request

_NO_DECODES = DecodeBatch([], [])


class StepBuilder:
    """What a step holds already, and the tokens and rows that it still has room for."""

    __slots__ = (
        "_limits",
        "batch",
        "batch_step",
        "begins_block",
        "is_starved",
        "num_decode_kv_tokens",
        "num_generated_chunks",
        "num_prefill_tokens",
        "num_rows_left",
        "num_tokens_left",
        "preempted",
        "prompts",
        "step_id",
    )

    def __init__(self, step_id: int, limits: SchedulerLimits) -> None:
        self._limits = limits
        self.step_id = step_id
        self.batch = _NO_DECODES
        self.batch_step = 0
        self.begins_block = False
        self.num_decode_kv_tokens = 0
        self.prompts: list[ScheduledRequest] = []
        self.num_generated_chunks = 0
        """The first of `prompts`, where phases differ: of tokens that were generated before."""
        self.preempted: list[Request] = []
        self.num_tokens_left = limits.max_num_batched_tokens
        self.num_rows_left = limits.max_num_rows
        self.num_prefill_tokens = 0
        self.is_starved = False
        """A running sequence waits for blocks: nobody after it may take any."""

    @property
    def is_empty(self) -> bool:
        return not self.batch.requests and not self.prompts

    @property
    def num_decodes(self) -> int:
        return len(self.batch.requests)

    def add_decodes(
        self, batch: DecodeBatch, batch_step: int, num_kv_tokens: int, *, begins_block: bool
    ) -> None:
        """One token and one row each; `num_kv_tokens` is the sum of contexts that they read."""
        self.batch = batch
        self.batch_step = batch_step
        self.begins_block = begins_block
        self.num_decode_kv_tokens = num_kv_tokens
        self.num_tokens_left -= len(batch.requests)
        self.num_rows_left -= len(batch.requests)

    def add_prefill(self, item: ScheduledRequest, num_rows: int) -> None:
        if self._limits.phases_differ and item.start >= item.request.num_given_tokens:
            self.prompts.insert(self.num_generated_chunks, item)
            self.num_generated_chunks += 1
        else:
            self.prompts.append(item)
        self.num_tokens_left -= item.num_tokens
        self.num_rows_left -= num_rows
        self.num_prefill_tokens += item.num_tokens

    def chunk(self, request: Request, start: int, most: int | None = None) -> int:
        """Tokens from `start` on that fit into the step; 0 if the request must wait for another.

        At most `most`, if it is given. Without chunked prefill a prompt goes whole. One that was
        preempted is cut nonetheless: with its output it may have grown past what a step holds.
        """
        num_left = request.num_tokens - start
        num_given_left = request.num_given_tokens - start
        if self._limits.phases_differ and num_given_left > 0:
            num_left = min(num_left, num_given_left)
        num_tokens = min(num_left, self.num_tokens_left)
        if most is not None:
            num_tokens = min(num_tokens, most)
        if samples_at(request, start + num_tokens) and (
            num_rows(request, start, num_tokens) > self.num_rows_left
        ):
            num_tokens -= 1  # the rest fits or is scored alone
        excess = num_rows(request, start, num_tokens) - self.num_rows_left
        num_tokens = max(0, num_tokens - max(0, excess))
        # So may one that has come from another engine with its output.
        is_prompt = request.num_preemptions == 0 and start < request.num_given_tokens
        must_be_whole = not self._limits.enable_chunked_prefill and is_prompt
        return 0 if must_be_whole and num_tokens < num_left else num_tokens


def samples_at(request: Request, end: int) -> bool:
    """Whether a step that computes the tokens below `end`, all of them known, samples."""
    return end == request.num_tokens and request.max_tokens > 0


def num_rows(request: Request, start: int, num_tokens: int) -> int:
    """Rows of logits that computing `num_tokens` known tokens from `start` takes.

    A choice that samples has a row of its own; a scored prompt position is a row, whose last one
    is the first choice's.
    """
    end = start + num_tokens
    rows = 1 + len(request.pending_choices) if samples_at(request, end) else 0
    if request.sampling.prompt_logprobs is not None:
        num_prompt = request.num_prompt_tokens
        scored = min(end, num_prompt) - max(start, request.num_scored_tokens)
        if scored > 0:
            rows += scored - (1 if rows and end == num_prompt else 0)
    return rows
