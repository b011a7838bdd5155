"""Steady decoding: the same sequences again, one token further each.

Most steps are like this. Their inputs differ from the last ones by a token id and a position for
each sequence, and by a block where a sequence has come to a border; all else stands in the buffer.
"""

from __future__ import annotations

from takt.engine.block_filler import BlockFiller
from takt.engine.seats import Seats
from takt.engine.step_buffer import FilledStep, SteadyBatch, StepBuffer
from takt.scheduler.output import SchedulerOutput


class SteadyDecoder:
    """Refills a buffer that holds the step before; so it takes programs that run no steps ahead."""

    def __init__(self, blocks: BlockFiller, seats: Seats, block_size: int) -> None:
        self._blocks = blocks
        self._seats = seats
        self._block_size = block_size

    def remember(self, filled: FilledStep, buffer: StepBuffer) -> None:
        """Notes a step that a steady one may follow: one token and one row for each sequence."""
        items = filled.scheduled.scheduled
        is_plain = (
            len(items) == filled.scheduled.total_num_scheduled_tokens
            and len(items) == filled.num_rows == len(filled.sampled)
            and not filled.scheduled.block_copies
        )
        buffer.steady = None
        if is_plain:
            requests = [item.request for item in items]
            starts = [item.start for item in items]
            views, num_seqs = buffer.step.views, len(items)
            buffer.steady = SteadyBatch(
                requests=requests,
                starts=starts,
                num_kv_tokens=sum(starts) + num_seqs,
                num_to_border=self._num_to_border(starts),
                wants_logprobs=filled.wants_logprobs,
                rows=list(range(num_seqs)),
                table_rows=self._blocks.rows(requests),
                token_ids=views["token_ids"][:num_seqs],
                sampled_ids=buffer.output.views["token_ids"][:num_seqs],
                counters=(
                    views["positions"][:num_seqs],
                    views["seq_lens"][:num_seqs],
                    views["row_position"][:num_seqs],
                ),
                slots=views["slot_mapping"][:, :num_seqs],
            )

    def refill(self, scheduled: SchedulerOutput, buffer: StepBuffer) -> FilledStep | None:
        """The step, or None if it is no continuation of the one before.

        Penalties and biases are not refilled.
        """
        batch, items = buffer.steady, scheduled.scheduled
        if (
            batch is None
            or scheduled.total_num_scheduled_tokens != len(batch.requests)
            or scheduled.block_copies
            or self._seats.counts
            or self._seats.biases
            or [item.request for item in items] != batch.requests
        ):
            return None
        starts = [item.start for item in items]
        if starts != [start + 1 for start in batch.starts]:
            return None
        batch.starts = starts
        buffer.step.views["header"][0] = scheduled.step_id
        batch.token_ids[:] = batch.sampled_ids
        for counter in batch.counters:
            counter += 1
        if batch.num_to_border == 0:
            rows = batch.table_rows
            self._blocks.fill(buffer, rows, rows, max(starts) + 1)
            batch.num_to_border = self._num_to_border(starts)
        else:
            batch.slots += 1
            batch.num_to_border -= 1
        num_kv_tokens = batch.num_kv_tokens = batch.num_kv_tokens + len(starts)
        return FilledStep(
            scheduled,
            num_rows=len(starts),
            sampled=batch.requests,
            sampled_rows=batch.rows,
            wants_logprobs=batch.wants_logprobs,
            num_kv_tokens_read=num_kv_tokens,
            num_qk_pairs=num_kv_tokens,
            num_decode_kv_tokens=num_kv_tokens,
        )

    def _num_to_border(self, starts: list[int]) -> int:
        """Steps after one that began at `starts` whose tokens go into the same blocks."""
        block_size = self._block_size
        return min(block_size - 1 - start % block_size for start in starts)
