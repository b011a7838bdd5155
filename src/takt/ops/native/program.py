"""Programs on the native runtime: replayed whole, or operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from takt import _native
from takt.errors import EngineDeadError, InvariantError
from takt.types.instruction import StepTimes
from takt.types.step import StepInput, StepLimits, StepOutput, input_layout, output_layout

Emit = Callable[[_native.ProgramBuilder], Any]
"""Adds one operator's instructions and returns the numbers of its values."""


class Recorder(Protocol):
    """What becomes of an operator's call inside `forward`."""

    def call(self, key: tuple[Any, ...], emit: Emit) -> Any:
        """`key` names the operator and its operands; returns the numbers of its values."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """The instructions [first, end) that one operator's call became."""

    key: tuple[Any, ...]
    first: int
    end: int
    result: Any


class Capture:
    """Builds a program; each call becomes instructions."""

    def __init__(self, builder: _native.ProgramBuilder) -> None:
        self.builder = builder
        self.spans: list[Span] = []

    def call(self, key: tuple[Any, ...], emit: Emit) -> Any:
        first = self.builder.num_instructions
        try:
            result = emit(self.builder)
        except ValueError as error:
            raise InvariantError(f"{key[0]}: {error}") from error
        self.spans.append(Span(key, first, self.builder.num_instructions, result))
        return result


class NativeProgram:
    """Replays all instructions of a step with one call; see `takt.ops.base.Program`.

    `run` raises `InvariantError` for an input outside of the program's limits (nothing has run
    then) and `EngineDeadError` once the thread pool was aborted.
    """

    def __init__(self, pool: _native.Pool, capture: Capture, limits: StepLimits) -> None:
        self._program = _native.Program(
            pool, capture.builder, input_layout(limits).offsets(), output_layout(limits).offsets()
        )
        self.spans: Sequence[Span] = capture.spans

    @property
    def num_instructions(self) -> int:
        return self._program.num_instructions

    @property
    def arena_bytes(self) -> int:
        """Size of one step's intermediates; up to four exist, and cost memory once touched."""
        return self._program.arena_bytes

    def set_profiling(self, is_on: bool) -> None:
        """Whether each step's times are kept; see `native/program/step_profile.h`."""
        self._program.set_profiling(is_on)

    def read_profile(self) -> StepTimes:
        """Of the last step; raises `InvariantError` if it was not profiled."""
        program = self._program
        times = np.zeros((program.num_threads, program.num_instructions, 4), dtype=np.int64)
        stamps = np.zeros(4, dtype=np.int64)
        try:
            program.read_profile(times, stamps)
        except ValueError as error:
            raise InvariantError(str(error)) from error
        return StepTimes(times, *(int(stamp) for stamp in stamps))

    def run(self, step: StepInput, output: StepOutput) -> None:
        try:
            self._program.run(step.address, output.address)
        except ValueError as error:
            raise InvariantError(str(error)) from error
        except RuntimeError as error:
            raise EngineDeadError(str(error)) from error

    def start(self, step: StepInput) -> None:
        """Has the pool's other threads begin a step, which `finish` completes; raises as `run`.

        The caller may do something else in between, but nothing with this pool. `step` is copied.
        """
        try:
            self._program.start(step.address)
        except ValueError as error:
            raise InvariantError(str(error)) from error
        except RuntimeError as error:
            raise EngineDeadError(str(error)) from error

    def finish(self, output: StepOutput) -> None:
        """Joins the threads in the step that was started, and fills `output` when it is done."""
        try:
            self._program.finish(output.address)
        except ValueError as error:
            raise InvariantError(str(error)) from error
        except RuntimeError as error:
            raise EngineDeadError(str(error)) from error


class EagerProgram:
    """Calls `forward` at each step; each operator runs its own instructions at once.

    The instructions, and so the results, are those of the captured program.
    """

    def __init__(
        self,
        pool: _native.Pool,
        capture: Capture,
        limits: StepLimits,
        forward: Callable[[], None],
        recording: Callable[[Recorder, Callable[[], None]], None],
    ) -> None:
        """`recording(recorder, forward)` calls `forward` with its operators sent to `recorder`."""
        self._program = _native.Program(
            pool, capture.builder, input_layout(limits).offsets(), output_layout(limits).offsets()
        )
        self._spans = capture.spans
        self._forward = forward
        self._recording = recording

    def run(self, step: StepInput, output: StepOutput) -> None:
        try:
            self._program.begin(step.address)
            self._program.execute(0, self._spans[0].first)
            self._recording(_Replay(self._program, self._spans), self._forward)
            self._program.end(output.address)
        except ValueError as error:
            raise InvariantError(str(error)) from error
        except RuntimeError as error:
            raise EngineDeadError(str(error)) from error


class _Replay:
    """Executes each call's instructions, provided it is the call that was captured."""

    def __init__(self, program: _native.Program, spans: list[Span]) -> None:
        self._program = program
        self._spans = spans
        self._next = 0

    def call(self, key: tuple[Any, ...], emit: Emit) -> Any:
        if self._next == len(self._spans) or self._spans[self._next].key != key:
            raise InvariantError(
                f"operator {self._next} of this step is {key[0]}, not what was captured: forward "
                "must make the same calls each time"
            )
        span = self._spans[self._next]
        self._next += 1
        self._program.execute(span.first, span.end)
        return span.result
