"""What an instruction of a captured program does, for reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class InstructionLabel:
    """`kind` is an operator of a layer, such as qkv or attention; `layer` is None outside layers.

    Weights are those that a product reads; zero for others.
    """

    kind: str
    layer: int | None = None
    weight_bytes: int = 0
    weight_rows: int = 0
    weight_columns: int = 0
    window: int | None = None
    """Of attention: keys that a query sees at most."""
    query_width: int = 0
    """Of attention: heads times their size."""
    is_per_row: bool = False
    """Works on rows that are sampled or scored, not on all tokens."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The batch of one step: context before it and new tokens, of each sequence."""

    sequences: tuple[tuple[int, int], ...]
    num_rows: int

    @property
    def num_tokens(self) -> int:
        return sum(new for _, new in self.sequences)

    def kv_tokens(self, window: int | None) -> int:
        """Keys that are read, each once."""
        return sum(
            start + new if window is None else min(start + new, window + new - 1)
            for start, new in self.sequences
        )

    def qk_pairs(self, window: int | None) -> int:
        """Queries times the keys that each of them sees."""
        return sum(
            start + i + 1 if window is None else min(start + i + 1, window)
            for start, new in self.sequences
            for i in range(new)
        )


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of a profiled program, in nanoseconds of the monotonic clock.

    `threads` is int64 `[num_threads, num_instructions, 4]`: start of the first tile, end of the
    last, time in tiles, number of tiles; all 0 where a thread had none.
    """

    threads: npt.NDArray[np.int64]
    begin_ns: int
    run_start_ns: int
    """The input is copied, the first instruction begins."""
    run_end_ns: int
    end_ns: int
    """The output is written."""
