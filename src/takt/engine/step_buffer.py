"""The buffers of a step, and what a filled one holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from takt.kvcache.block_tables import NO_BLOCK
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request
from takt.types.step import StepInput, StepOutput


class StepBuffer:
    """Input and output of one step in flight, made once, in memory of the executor's choice."""

    def __init__(self, step: StepInput, output: StepOutput) -> None:
        self.step = step
        self.output = output
        self.step.views["block_tables"].fill(NO_BLOCK)
        self.table_width = 0
        """Columns of the block tables that may hold blocks."""
        self.gathered: tuple[int, list[int]] | None = None
        """What the constant columns of the rows hold: version of the seats, and their order."""
        self.steady: SteadyBatch | None = None


@dataclass(slots=True)
class ScoredSpan:
    """Rows of one request that score its prompt positions `first_scored .. end - 1`.

    Position 0 has no row: nothing predicts it. A span that begins the prompt reports it as None.
    """

    request: Request
    first_scored: int
    end: int
    first_row: int

    @property
    def is_first(self) -> bool:
        return self.first_scored == 1

    @property
    def num_rows(self) -> int:
        return max(self.end - self.first_scored, 0)


@dataclass(slots=True)
class FilledStep:
    """What the rows of a step belong to, so that its output can be read."""

    scheduled: SchedulerOutput
    num_rows: int = 0
    sampled: list[Request] = field(default_factory=list)
    sampled_rows: Sequence[int] = ()
    scored: list[ScoredSpan] = field(default_factory=list)
    wants_logprobs: bool = False
    """Some sequence of `sampled` asks for logprobs."""
    newly_seated: list[Request] = field(default_factory=list)
    """Scheduled for the first time, or again after they were preempted."""
    num_kv_tokens_read: int = 0
    num_qk_pairs: int = 0


@dataclass(slots=True)
class SteadyBatch:
    """A step that decoded one token of each sequence, and the next one may be like."""

    filled: FilledStep
    longest_base: int
    table_rows: npt.NDArray[np.int64]
    """Row of each sequence among the block tables."""
