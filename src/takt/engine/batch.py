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
        native: bool,
    ) -> None:
        """`native`: the native module may be called."""
        self._limits = limits
        self._blocks = BlockFiller(tables, block_size)
        self._seats = seats
        self._steady: SteadyDecoder | None = None
        if native and not runs_ahead:
            self._steady = SteadyDecoder(limits, self._blocks, seats)
        self._runs_ahead = runs_ahead
        self._ramp = np.arange(limits.max_num_tokens + 1, dtype=np.int64)
        self._num_scored: dict[Request, int] = {}

    def forget(self, request: Request) -> None:
        """Drops what is kept for a sequence that ended."""
        self._num_scored.pop(request, None)

    def fill(self, scheduled: SchedulerOutput, buffer: StepBuffer) -> FilledStep:
        if self._steady is None:
            return self._fill_whole(scheduled, buffer)
        filled = self._steady.refill(scheduled, buffer)
        if filled is None:
            filled = self._fill_whole(scheduled, buffer)
            self._steady.remember(filled, buffer)
        return filled

    def _fill_whole(self, scheduled: SchedulerOutput, buffer: StepBuffer) -> FilledStep:
        filled = FilledStep(scheduled)
        rows = _Rows()
        starts = scheduled.batch.starts(scheduled.batch_step)
        token_ids = self._collect_decodes(filled, rows, starts)
        self._collect_prompts(filled, rows, token_ids)
        self._fill_tokens(buffer, filled, token_ids, starts)
        self._fill_rows(buffer, filled, rows)
        views, copies = buffer.step.views, scheduled.block_copies
        if copies:
            views["block_copies"][: len(copies)] = copies
        views["header"][:6] = (
            scheduled.step_id,
            scheduled.total_num_scheduled_tokens,
            scheduled.num_seqs,
            filled.num_rows,
            len(copies),
            scheduled.num_generated_tokens,
        )
        return filled

    # -- tokens and blocks --------------------------------------------------------------------

    def _collect_decodes(self, filled: FilledStep, rows: _Rows, starts: list[int]) -> list[int]:
        """A token and a row of each; sequences, tokens and rows have equal numbers."""
        requests = filled.scheduled.batch.requests
        seats = [self._seat(request, filled) for request in requests]
        filled.sampled += requests
        filled.wants_logprobs = any([r.sampling.logprobs is not None for r in requests])
        rows.begin(seats, [start + 1 for start in starts])
        if not self._runs_ahead:
            return [r.token_ids[start] for r, start in zip(requests, starts, strict=True)]
        step_id = filled.scheduled.step_id
        token_ids: list[int] = []
        for request, start, seat in zip(requests, starts, seats, strict=True):
            self._append_tokens(token_ids, request, (start, start + 1), seat, step_id)
        return token_ids

    def _collect_prompts(self, filled: FilledStep, rows: _Rows, token_ids: list[int]) -> None:
        """Appends the tokens of the other sequences, and gives them their rows."""
        step_id = filled.scheduled.step_id
        sampled_rows = list(range(len(token_ids)))
        for item in filled.scheduled.prompts:
            request = item.request
            seat = self._seat(request, filled)
            query_start, end = len(token_ids), item.start + item.num_tokens
            self._append_tokens(token_ids, request, (item.start, end), seat, step_id)
            if request.sampling.prompt_logprobs is not None:
                self._add_scored(item, seat, query_start, filled, rows)
            if item.samples:
                filled.sampled.append(request)
                sampled_rows.append(rows.add(len(token_ids) - 1, seat, end))
                if request.sampling.logprobs is not None:
                    filled.wants_logprobs = True
                for fork in item.forks:
                    # From the same hidden state as its parent.
                    seat = self._seats.take(fork)
                    filled.sampled.append(fork)
                    sampled_rows.append(rows.add(len(token_ids) - 1, seat, end))
        filled.sampled_rows = sampled_rows

    def _seat(self, request: Request, filled: FilledStep) -> int:
        seat = self._seats.seat_of.get(request)
        if seat is None:
            seat = self._seats.take(request)
            filled.newly_seated.append(request)
        return seat

    def _fill_tokens(
        self, buffer: StepBuffer, filled: FilledStep, token_ids: list[int], starts: list[int]
    ) -> None:
        views, scheduled = buffer.step.views, filled.scheduled
        prompts, num_seqs, num_tokens = scheduled.prompts, scheduled.num_seqs, len(token_ids)
        views["token_ids"][:num_tokens] = token_ids
        requests = [*scheduled.batch.requests, *[item.request for item in prompts]]
        first = np.array([*starts, *[item.start for item in prompts]], dtype=np.int64)
        table_rows = self._blocks.rows(requests)
        if num_tokens == num_seqs:  # one token each
            views["query_start"][: num_seqs + 1] = self._ramp[: num_seqs + 1]
            views["positions"][:num_seqs] = first
            ends, token_rows = first + 1, table_rows
            filled.num_kv_tokens_read = filled.num_qk_pairs = int(ends.sum())
        else:
            lengths = np.ones(num_seqs, dtype=np.int64)
            lengths[len(starts) :] = [item.num_tokens for item in prompts]
            query_start = np.zeros(num_seqs + 1, dtype=np.int64)
            np.cumsum(lengths, out=query_start[1:])
            views["query_start"][: num_seqs + 1] = query_start
            shifts = np.repeat(first - query_start[:-1], lengths)
            views["positions"][:num_tokens] = self._ramp[:num_tokens] + shifts
            ends, token_rows = first + lengths, np.repeat(table_rows, lengths)
            filled.num_kv_tokens_read = int(ends.sum())
            # The query at position p reads p + 1 keys.
            filled.num_qk_pairs = int((lengths * (first + ends + 1)).sum()) // 2
        views["seq_lens"][:num_seqs] = ends
        self._blocks.fill(buffer, table_rows, token_rows, int(ends.max()))

    def _append_tokens(
        self, token_ids: list[int], request: Request, span: tuple[int, int], seat: int, step_id: int
    ) -> None:
        """Tokens of a sequence from `span[0]` up to `span[1]`."""
        known, (start, end) = request.token_ids, span
        if end <= len(known):
            token_ids += known[start:end]
            return
        # The newest token alone may be on its way: a step computes one token of such a sequence.
        before = known[start : end - 1]
        sampled_in, row = self._seats.last_row[seat]
        steps_back = step_id - sampled_in
        if sampled_in < 0 or len(before) != end - start - 1:
            raise InvariantError(
                f"{request.request_id}: tokens {start} to {end} are scheduled, "
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

    def begin(self, seats: list[int], positions: list[int]) -> None:
        """Takes the rows of decodes, whose tokens have the same numbers."""
        self.tokens = list(range(len(seats)))
        self.seats = seats
        self.positions = positions

    def add(self, token: int, seat: int, position: int) -> int:
        """Returns the number of the row."""
        row = len(self.tokens)
        self.tokens.append(token)
        self.seats.append(seat)
        self.positions.append(position)
        return row
