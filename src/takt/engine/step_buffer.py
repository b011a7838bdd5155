"""The buffers of a step, and what a filled one holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from takt.kvcache.block_tables import NO_BLOCK
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request
from takt.types.step import StepInput, StepOutput


@dataclass(slots=True)
class SteadyBatch:
    """Sequences of a step that decoded one token each; lists go in the order of rows."""

    requests: list[Request]
    starts: list[int]
    """Where each began in the step."""
    num_kv_tokens: int
    """Sum of their contexts after it."""
    num_to_border: int
    """Steps that can follow before one of them needs another block."""
    wants_logprobs: bool
    rows: list[int]
    table_rows: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    """Its part of the step's input, as are those below: slices take longer to make than to fill."""
    sampled_ids: npt.NDArray[np.int32]
    """Its part of the step's output: what it has sampled is the next step's input."""
    counters: tuple[npt.NDArray[Any], ...]
    """Fields that grow by one: positions, lengths, positions of the rows."""
    slots: npt.NDArray[np.int64]


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
    sampled_rows: list[int] = field(default_factory=list)
    scored: list[ScoredSpan] = field(default_factory=list)
    wants_logprobs: bool = False
    """Some sequence of `sampled` asks for logprobs."""
    newly_seated: list[Request] = field(default_factory=list)
    """Scheduled for the first time, or again after they were preempted."""
    num_kv_tokens_read: int = 0
    num_qk_pairs: int = 0
    num_decode_kv_tokens: int = 0
