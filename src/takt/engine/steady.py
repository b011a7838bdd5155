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
            views, num_seqs = buffer.step.views, len(items)
            buffer.steady = SteadyBatch(
                requests=requests,
                next_starts=[item.start + 1 for item in items],
                rows=list(range(len(items))),
                table_rows=self._blocks.rows(requests),
                token_ids=views["token_ids"][:num_seqs],
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
        if starts != batch.next_starts:
            return None
        batch.next_starts = [start + 1 for start in starts]
        buffer.step.views["header"][0] = scheduled.step_id
        batch.token_ids[:] = [item.request.token_ids[item.start] for item in items]
        for counter in batch.counters:
            counter += 1
        block_size = self._block_size
        if 0 in [start % block_size for start in starts]:
            rows = batch.table_rows
            self._blocks.fill(buffer, rows, rows, max(starts) + 1)
        else:
            batch.slots += 1
        num_kv_tokens = sum(batch.next_starts)
        return FilledStep(
            scheduled,
            num_rows=len(items),
            sampled=batch.requests,
            sampled_rows=batch.rows,
            num_kv_tokens_read=num_kv_tokens,
            num_qk_pairs=num_kv_tokens,
            num_decode_kv_tokens=num_kv_tokens,
        )
