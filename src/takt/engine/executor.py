"""Runs steps, one after the other or some ahead."""

from __future__ import annotations

from typing import Protocol

from takt.errors import EngineDeadError
from takt.ops.base import Program, StartableProgram
from takt.types.step import StepInput, StepLimits, StepOutput


class Executor(Protocol):
    """Steps start in the order of submission and complete in it.

    A step's buffers belong to the executor from `submit` until the `wait` that completes it.
    """

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that may be submitted and not completed."""
        ...

    @property
    def runs_native(self) -> bool:
        """Whether it is native programs that run, so that the native module is there for more."""
        ...

    def step_memory(self, limits: StepLimits, index: int) -> tuple[StepInput, StepOutput]:
        """Buffers for steps, made at start-up; `index` is below `max_steps_in_flight`."""
        ...

    def submit(self, step: StepInput, output: StepOutput) -> None: ...

    def wait(self) -> None:
        """Blocks until the oldest step that was submitted is complete."""
        ...


class InlineExecutor:
    """Runs each step in the caller's thread, which is thread 0 of a native program's pool.

    Where the program can, the pool's other threads begin at `submit`, and the caller joins them in
    `wait`: what it does in between costs them nothing. Any other program runs in `wait`.
    """

    max_steps_in_flight = 1

    def __init__(self, program: Program) -> None:
        self.program = program
        self._startable = program if isinstance(program, StartableProgram) else None
        self.runs_native = self._startable is not None
        self._submitted: tuple[StepInput, StepOutput] | None = None

    def step_memory(self, limits: StepLimits, index: int) -> tuple[StepInput, StepOutput]:
        return StepInput(limits), StepOutput(limits)

    def submit(self, step: StepInput, output: StepOutput) -> None:
        if self._startable is not None:
            self._startable.start(step)
        self._submitted = step, output

    def wait(self) -> None:
        submitted, self._submitted = self._submitted, None
        if submitted is None:
            raise EngineDeadError("the step that was to be completed has failed before")
        if self._startable is not None:
            self._startable.finish(submitted[1])
        else:
            self.program.run(*submitted)
