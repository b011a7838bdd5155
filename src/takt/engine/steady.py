"""Steady decoding: the same sequences again, one token further each.

Most steps are like this. Their inputs differ from the last ones by a token id and a position for
each sequence, and by a block where a sequence has come to a border; all else stands in the buffer.
Writing that takes one native call; without the native module each step is filled whole.
"""

from __future__ import annotations

from takt.engine.block_filler import BlockFiller
from takt.engine.seats import Seats
from takt.engine.step_buffer import FilledStep, SteadyBatch, StepBuffer
from takt.scheduler.output import SchedulerOutput
from takt.types.step import StepLimits


class SteadyDecoder:
    """Refills a buffer that holds the step before; so it takes programs that run no steps ahead,
    and native ones."""

    def __init__(self, limits: StepLimits, blocks: BlockFiller, seats: Seats) -> None:
        from takt.ops.native.decode_step import DecodeStep

        self._step = DecodeStep(limits, blocks.block_size)
        self._blocks = blocks
        self._seats = seats

    def remember(self, filled: FilledStep, buffer: StepBuffer) -> None:
        """Notes a step that a steady one may follow: one token and one row for each sequence."""
        scheduled, batch = filled.scheduled, filled.scheduled.batch
        buffer.steady = None
        if not scheduled.prompts and not scheduled.block_copies:
            rows = self._blocks.rows(batch.requests)
            buffer.steady = SteadyBatch(filled, max(batch.bases), rows)

    def refill(self, scheduled: SchedulerOutput, buffer: StepBuffer) -> FilledStep | None:
        """The step, or None if it is no continuation of the one before.

        Penalties and biases are not refilled. What is returned was the step before; nobody looks at
        that any more.
        """
        steady = buffer.steady
        if (
            steady is None
            or steady.filled.scheduled.batch is not scheduled.batch
            or steady.filled.scheduled.batch_step + 1 != scheduled.batch_step
            or scheduled.prompts
            or scheduled.block_copies
            or self._seats.counts
            or self._seats.biases
        ):
            return None
        filled = steady.filled
        self._step.advance(buffer.step, buffer.output, scheduled.step_id, filled.num_rows)
        if scheduled.begins_block:
            width = self._blocks.widen(buffer, steady.longest_base + scheduled.batch_step + 1)
            self._step.write_blocks(buffer.step, self._blocks.tables, steady.table_rows, width)
        filled.scheduled = scheduled
        filled.num_kv_tokens_read = filled.num_qk_pairs = scheduled.num_decode_kv_tokens
        return filled
