"""From a `SchedulerOutput` to tokens: fills the step's input, has it run, reads its output."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from takt.clock import Clock
from takt.engine.batch import BatchFiller
from takt.engine.block_filler import BlockTables
from takt.engine.executor import Executor
from takt.engine.messages import TokenLogprob
from takt.engine.output_reader import create_output_reader
from takt.engine.seats import Seats
from takt.engine.step_buffer import FilledStep, StepBuffer
from takt.errors import InvariantError
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request
from takt.types.step import StepLimits


@dataclass(slots=True)
class StepTokens:
    """What a completed step returned; entries of `logprobs` go with those of `token_ids`."""

    filled: FilledStep
    run_start_ns: int
    run_end_ns: int
    num_redone_tiles: int
    stolen_run_ns: int
    stolen_host_ns: int
    computed_ns: int
    token_ids: list[int]
    """Of the sequences that were sampled, in the order of `filled.sampled`."""
    logprobs: list[TokenLogprob | None] | None
    """None if no sequence asks for any."""
    prompt_logprobs: dict[Request, list[TokenLogprob | None]] = field(default_factory=dict)


class Runner:
    """Owns the buffers of the steps in flight and the seats of the sequences that run."""

    def __init__(
        self,
        executor: Executor,
        limits: StepLimits,
        block_size: int,
        tables: BlockTables,
        clock: Clock,
        *,
        is_pipeline: bool = False,
    ) -> None:
        """`is_pipeline`: no sequence is in two steps at once."""
        self._is_pipeline = is_pipeline
        self._executor = executor
        self._clock = clock
        self._reader = create_output_reader(limits, native=executor.runs_native)
        self._seats = Seats(limits.max_num_seqs)
        self._filler = BatchFiller(
            limits,
            block_size,
            tables,
            self._seats,
            runs_ahead=executor.max_steps_in_flight > 1,
            native=executor.runs_native,
        )
        self._idle = deque(
            StepBuffer(*executor.step_memory(limits, index))
            for index in range(executor.max_steps_in_flight)
        )
        self._in_flight: deque[tuple[StepBuffer, FilledStep, int]] = deque()

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_in_flight_tokens(self) -> int:
        """Tokens that the steps in flight compute."""
        return sum(f.scheduled.total_num_scheduled_tokens for _, f, _ in self._in_flight)

    @property
    def can_submit(self) -> bool:
        """Whether another step may start now.

        A penalty needs the newest token counted, so no step runs ahead while a request with one
        is in the batch; those of a pipeline have their newest token when they are scheduled.
        """
        runs_ahead = self._is_pipeline or not self._seats.counts
        return not self._in_flight or (bool(self._idle) and runs_ahead)

    def preempt(self, requests: Iterable[Request]) -> None:
        """Frees the seats of sequences that will be computed again."""
        for request in requests:
            self._seats.release(request)

    def submit(self, scheduled: SchedulerOutput) -> None:
        """Starts a step; with an executor that runs inline, runs it."""
        buffer = self._idle.popleft()
        filled = self._filler.fill(scheduled, buffer)
        start_ns = self._clock.now_ns()
        self._executor.submit(buffer.step, buffer.output)
        self._in_flight.append((buffer, filled, start_ns))

    def wait(self) -> StepTokens:
        """Completes the oldest step in flight and reads it."""
        self._executor.wait()
        end_ns = self._clock.now_ns()
        buffer, filled, start_ns = self._in_flight.popleft()
        tokens = self._read(buffer, filled, start_ns, end_ns)
        self._idle.append(buffer)
        return tokens

    def release(self, request: Request) -> None:
        """Forgets a sequence that ended; a step in flight may still return a token of it."""
        self._seats.release(request)
        self._filler.forget(request)

    def _read(
        self, buffer: StepBuffer, filled: FilledStep, start_ns: int, end_ns: int
    ) -> StepTokens:
        step_id, num_redone_tiles, stolen_run_ns, stolen_host_ns, computed_ns, of_rows = (
            self._reader.read(buffer.output, filled.num_rows)
        )
        if step_id != filled.scheduled.step_id:
            raise InvariantError(f"step {filled.scheduled.step_id} returned as {step_id}")
        token_ids = of_rows
        if filled.scored:  # rows that are not sampled
            token_ids = [of_rows[row] for row in filled.sampled_rows]
        logprobs: list[TokenLogprob | None] | None = None
        if filled.wants_logprobs:
            logprobs = [
                None
                if (num_top := request.sampling.logprobs) is None
                else _logprob(buffer, row, of_rows[row], num_top)
                for request, row in zip(filled.sampled, filled.sampled_rows, strict=True)
            ]
        tokens = StepTokens(
            filled=filled,
            run_start_ns=start_ns,
            run_end_ns=end_ns,
            num_redone_tiles=num_redone_tiles,
            stolen_run_ns=stolen_run_ns,
            stolen_host_ns=stolen_host_ns,
            computed_ns=computed_ns,
            token_ids=token_ids,
            logprobs=logprobs,
        )
        for span in filled.scored:
            num_top = span.request.sampling.prompt_logprobs or 0
            prompt = span.request.prompt_token_ids
            entries: list[TokenLogprob | None] = [None] if span.is_first else []
            for index in range(span.num_rows):
                target = prompt[span.first_scored + index]
                entries.append(_logprob(buffer, span.first_row + index, target, num_top))
            tokens.prompt_logprobs[span.request] = entries
        return tokens


def _logprob(buffer: StepBuffer, row: int, token_id: int, num_top: int) -> TokenLogprob:
    views = buffer.output.views
    return TokenLogprob(
        token_id=token_id,
        logprob=float(views["logprobs"][row]),
        rank=int(views["ranks"][row]),
        top=list(
            zip(
                views["top_token_ids"][row, :num_top].tolist(),
                views["top_logprobs"][row, :num_top].tolist(),
                strict=True,
            )
        ),
    )
