"""Writes what a scheduler decided into a `StepInput`: one ragged batch, whatever its mixture."""

from __future__ import annotations

import numpy as np

from takt.engine.block_filler import BlockFiller, BlockTables
from takt.engine.seats import Seats
from takt.engine.steady import SteadyDecoder
from takt.engine.step_buffer import FilledStep, ScoredSpan, StepBuffer
from takt.errors import InvariantError
from takt.scheduler.output import ScheduledRequest, SchedulerOutput
from takt.scheduler.request import Request
from takt.types.step import NO_LOGPROBS, SAMPLE, StepInput, StepLimits


class BatchFiller:
    """Fills step inputs of one engine.

    A token that no step has returned yet is written as a reference to the row that samples it:
    `-1 - (steps_back - 1) * max_num_rows - row`. Only programs that run steps ahead see one.
    """

    def __init__(
        self,
        limits: StepLimits,
        block_size: int,
        tables: BlockTables,
        seats: Seats,
        *,
        runs_ahead: bool,
    ) -> None:
        self._limits = limits
        self._blocks = BlockFiller(tables, block_size)
        self._seats = seats
        self._steady = SteadyDecoder(self._blocks, seats, block_size)
        self._runs_ahead = runs_ahead
        self._ramp = np.arange(limits.max_num_tokens + 1, dtype=np.int64)
        self._num_scored: dict[Request, int] = {}

    def forget(self, request: Request) -> None:
        """Drops what is kept for a sequence that ended."""
        self._num_scored.pop(request, None)

    def fill(self, scheduled: SchedulerOutput, buffer: StepBuffer) -> FilledStep:
        if self._runs_ahead:
            return self._fill_whole(scheduled, buffer)
        filled = self._steady.refill(scheduled, buffer)
        if filled is None:
            filled = self._fill_whole(scheduled, buffer)
            self._steady.remember(filled, buffer)
        return filled

    def _fill_whole(self, scheduled: SchedulerOutput, buffer: StepBuffer) -> FilledStep:
        filled = FilledStep(scheduled)
        rows = _Rows()
        token_ids = self._collect(filled, rows)
        self._fill_tokens(buffer, filled, token_ids)
        self._fill_rows(buffer, filled, rows)
        views, copies = buffer.step.views, scheduled.block_copies
        if copies:
            views["block_copies"][: len(copies)] = copies
        views["header"][:5] = (
            scheduled.step_id,
            scheduled.total_num_scheduled_tokens,
            len(scheduled.scheduled),
            filled.num_rows,
            len(copies),
        )
        return filled

    # -- tokens and blocks --------------------------------------------------------------------

    def _collect(self, filled: FilledStep, rows: _Rows) -> list[int]:
        """Gives each sequence a seat and its rows; returns the token ids of the step."""
        seat_of, step_id = self._seats.seat_of, filled.scheduled.step_id
        token_ids: list[int] = []
        for item in filled.scheduled.scheduled:
            request = item.request
            seat = seat_of.get(request)
            if seat is None:
                seat = self._seats.take(request)
                filled.newly_seated.append(request)
            query_start = len(token_ids)
            self._append_tokens(token_ids, item, seat, step_id)
            if request.sampling.prompt_logprobs is not None:
                self._add_scored(item, seat, query_start, filled, rows)
            if item.samples:
                position = item.start + item.num_tokens
                filled.sampled.append(request)
                filled.sampled_rows.append(rows.add(len(token_ids) - 1, seat, position))
                if request.sampling.logprobs is not None:
                    filled.wants_logprobs = True
                for fork in item.forks:
                    # From the same hidden state as its parent.
                    seat = self._seats.take(fork)
                    filled.sampled.append(fork)
                    filled.sampled_rows.append(rows.add(len(token_ids) - 1, seat, position))
        return token_ids

    def _fill_tokens(self, buffer: StepBuffer, filled: FilledStep, token_ids: list[int]) -> None:
        views, items = buffer.step.views, filled.scheduled.scheduled
        num_seqs, num_tokens = len(items), len(token_ids)
        views["token_ids"][:num_tokens] = token_ids
        starts = np.array([item.start for item in items], dtype=np.int64)
        table_rows = self._blocks.rows([item.request for item in items])
        if num_tokens == num_seqs:  # one token each
            views["query_start"][: num_seqs + 1] = self._ramp[: num_seqs + 1]
            views["positions"][:num_seqs] = starts
            ends, token_rows = starts + 1, table_rows
            filled.num_kv_tokens_read = filled.num_qk_pairs = int(ends.sum())
            num_decodes = num_tokens - filled.scheduled.num_prefill_tokens
            filled.num_decode_kv_tokens = int(ends[:num_decodes].sum())
        else:
            lengths = np.array([item.num_tokens for item in items], dtype=np.int64)
            query_start = np.zeros(num_seqs + 1, dtype=np.int64)
            np.cumsum(lengths, out=query_start[1:])
            views["query_start"][: num_seqs + 1] = query_start
            shifts = np.repeat(starts - query_start[:-1], lengths)
            views["positions"][:num_tokens] = self._ramp[:num_tokens] + shifts
            ends, token_rows = starts + lengths, np.repeat(table_rows, lengths)
            filled.num_kv_tokens_read = int(ends.sum())
            # The query at position p reads p + 1 keys.
            filled.num_qk_pairs = int((lengths * (starts + ends + 1)).sum()) // 2
            # Decodes come first, one token each.
            num_decodes = num_tokens - filled.scheduled.num_prefill_tokens
            filled.num_decode_kv_tokens = int(ends[:num_decodes].sum())
        views["seq_lens"][:num_seqs] = ends
        self._blocks.fill(buffer, table_rows, token_rows, int(ends.max()))

    def _append_tokens(
        self, token_ids: list[int], item: ScheduledRequest, seat: int, step_id: int
    ) -> None:
        known, start = item.request.token_ids, item.start
        end = start + item.num_tokens
        if end <= len(known):
            if item.num_tokens == 1:
                token_ids.append(known[start])
            else:
                token_ids += known[start:end]
            return
        # The newest token alone may be on its way: a step computes one token of such a sequence.
        before = known[start : end - 1]
        sampled_in, row = self._seats.last_row[seat]
        steps_back = step_id - sampled_in
        if sampled_in < 0 or len(before) != item.num_tokens - 1:
            raise InvariantError(
                f"{item.request.request_id}: tokens {start} to {end} are scheduled, "
                f"{len(known)} are known"
            )
        token_ids += before
        token_ids.append(-1 - (steps_back - 1) * self._limits.max_num_rows - row)

    # -- rows of logits -----------------------------------------------------------------------

    def _add_scored(
        self, item: ScheduledRequest, seat: int, query_start: int, filled: FilledStep, rows: _Rows
    ) -> None:
        """Rows for the prompt positions that this chunk predicts and no earlier one reported."""
        request = item.request
        prompt = request.prompt_token_ids
        done = self._num_scored.get(request, 0)
        end = min(item.start + item.num_tokens + 1, len(prompt))
        if end <= done or request.choice != 0:
            return
        # The token at position p is scored by the row of position p - 1; position 0 by none.
        first = max(done, 1)
        if item.start >= first:
            raise InvariantError(f"{request.request_id}: prompt position {first} was never scored")
        filled.scored.append(ScoredSpan(request, first, end, len(rows.tokens)))
        for position in range(first, end):
            rows.add(query_start + position - 1 - item.start, seat, position)
        self._num_scored[request] = end

    def _fill_rows(self, buffer: StepBuffer, filled: FilledStep, rows: _Rows) -> None:
        views, num_rows = buffer.step.views, len(rows.tokens)
        filled.num_rows = num_rows
        views["row_tokens"][:num_rows] = rows.tokens
        views["row_targets"][:num_rows] = SAMPLE
        views["row_position"][:num_rows] = rows.positions
        if self._runs_ahead:
            step_id = filled.scheduled.step_id
            for row in filled.sampled_rows:
                self._seats.last_row[rows.seats[row]] = (step_id, row)
        # Steady decoding repeats the rows of the step before: their constants are in place.
        wanted = (self._seats.version, rows.seats)
        if buffer.gathered != wanted:
            self._seats.gather(np.array(rows.seats, dtype=np.intp), buffer.step)
            buffer.gathered = wanted
        if filled.scored:
            self._fill_scored_rows(buffer.step, filled)
            buffer.gathered = None
        self._fill_history(buffer.step, filled, rows)
        self._fill_biases(buffer.step, filled, rows)

    def _fill_scored_rows(self, step: StepInput, filled: FilledStep) -> None:
        for span in filled.scored:
            rows = slice(span.first_row, span.first_row + span.num_rows)
            prompt = span.request.prompt_token_ids
            step.views["row_targets"][rows] = prompt[span.first_scored : span.end]
            asked = span.request.sampling.prompt_logprobs
            step.views["row_num_logprobs"][rows] = NO_LOGPROBS if asked is None else asked

    def _fill_history(self, step: StepInput, filled: FilledStep, rows: _Rows) -> None:
        views = step.views
        start = views["history_start"][: filled.num_rows + 1]
        start[:] = 0
        if not self._seats.counts:
            return
        end = 0
        for request, row in zip(filled.sampled, filled.sampled_rows, strict=True):
            counts = self._seats.counts.get(rows.seats[row])
            if counts is not None:
                counts.update(request.token_ids)
                first, end = end, end + len(counts.tokens)
                views["history_token"][first:end] = counts.tokens
                views["history_count"][first:end] = counts.counts
                start[row + 1] = end - first
        np.cumsum(start, out=start)

    def _fill_biases(self, step: StepInput, filled: FilledStep, rows: _Rows) -> None:
        views = step.views
        start = views["bias_start"][: filled.num_rows + 1]
        start[:] = 0
        if not self._seats.biases:
            return
        end = 0
        for request, row in zip(filled.sampled, filled.sampled_rows, strict=True):
            seat_bias = self._seats.biases.get(rows.seats[row])
            if seat_bias is None:
                continue
            bias = seat_bias.at(rows.positions[row] - request.num_prompt_tokens)
            if bias is not None:
                first, end = end, end + len(bias.tokens)
                views["bias_token"][first:end] = bias.tokens
                views["bias_value"][first:end] = bias.values
                start[row + 1] = end - first
        np.cumsum(start, out=start)


class _Rows:
    """Rows of logits of one step while they are collected."""

    __slots__ = ("positions", "seats", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seats: list[int] = []
        self.positions: list[int] = []

    def add(self, token: int, seat: int, position: int) -> int:
        """Returns the number of the row."""
        row = len(self.tokens)
        self.tokens.append(token)
        self.seats.append(seat)
        self.positions.append(position)
        return row
