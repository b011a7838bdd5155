"""Runs steps, one after the other or some ahead."""

from __future__ import annotations

from typing import Protocol

from takt.ops.base import Program
from takt.types.step import StepInput, StepOutput


class Executor(Protocol):
    """Steps start in the order of submission and complete in it.

    A step's buffers belong to the executor from `submit` until the `wait` that completes it.
    """

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that may be submitted and not completed."""
        ...

    def submit(self, step: StepInput, output: StepOutput) -> None: ...

    def wait(self) -> None:
        """Blocks until the oldest step that was submitted is complete."""
        ...


class InlineExecutor:
    """Runs each step in the caller's thread, which is thread 0 of a native program's pool."""

    max_steps_in_flight = 1

    def __init__(self, program: Program) -> None:
        self.program = program

    def submit(self, step: StepInput, output: StepOutput) -> None:
        self.program.run(step, output)

    def wait(self) -> None:
        pass
