"""The last steps of an engine: where each one's time went, and percentiles of it."""

from __future__ import annotations

import enum
from typing import Protocol

import numpy as np
import numpy.typing as npt


class TimedStep(Protocol):
    """The stamps of one step, all of one monotonic clock."""

    step_id: int
    schedule_start_ns: int
    run_start_ns: int
    run_end_ns: int
    update_end_ns: int
    num_decode_seqs: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    num_qk_pairs: int


class StepPart(enum.Enum):
    """A stretch of a step's time, by the stamps at its two ends."""

    SCHEDULE = ("schedule_start_ns", "run_start_ns")
    """The decision and the filling of the step's input."""
    RUN = ("run_start_ns", "run_end_ns")
    UPDATE = ("run_end_ns", "update_end_ns")
    """Reading the output, finishing requests, making the message."""
    TOTAL = ("schedule_start_ns", "update_end_ns")


_FIELDS = (
    "step_id",
    "schedule_start_ns",
    "run_start_ns",
    "run_end_ns",
    "update_end_ns",
    "num_decode_seqs",
    "num_prefill_tokens",
    "num_kv_tokens_read",
    "num_qk_pairs",
)


class StepRecord:
    """A ring of the last `capacity` steps; adding one allocates nothing."""

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"a step record holds at least one step, not {capacity}")
        self._rows = np.zeros(capacity, dtype=[(name, np.int64) for name in _FIELDS])
        self._num_added = 0

    def __len__(self) -> int:
        """Steps that are held now."""
        return min(self._num_added, len(self._rows))

    @property
    def num_added(self) -> int:
        """Steps that were ever added."""
        return self._num_added

    def add(self, step: TimedStep) -> None:
        self._rows[self._num_added % len(self._rows)] = (
            step.step_id,
            step.schedule_start_ns,
            step.run_start_ns,
            step.run_end_ns,
            step.update_end_ns,
            step.num_decode_seqs,
            step.num_prefill_tokens,
            step.num_kv_tokens_read,
            step.num_qk_pairs,
        )
        self._num_added += 1

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """int64 `[len(self)]`, oldest step first; `name` is a field of `TimedStep`."""
        values: npt.NDArray[np.int64] = self._rows[name]
        if self._num_added <= len(values):
            return values[: self._num_added].copy()
        return np.roll(values, -(self._num_added % len(values)))

    def durations_ns(self, part: StepPart) -> npt.NDArray[np.int64]:
        """int64 `[len(self)]`, oldest step first."""
        start, end = part.value
        return self.column(end) - self.column(start)

    def percentiles_ns(self, part: StepPart, percents: list[float]) -> list[float]:
        """Percentiles of a part's time, by linear interpolation; raises if no step is held."""
        if not self._num_added:
            raise ValueError("a record without steps has no percentiles")
        return [float(v) for v in np.percentile(self.durations_ns(part), percents)]
