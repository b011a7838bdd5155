"""The ledger of a server: every late token, and what its time was spent on."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.clock import Clock
from takt.observe.ledger.causes import NUM_CAUSES, Cause
from takt.observe.ledger.late_tokens import (
    NO_STEP,
    GapNotes,
    LateToken,
    split_first_token,
    split_gaps,
)
from takt.observe.ledger.step_costs import Floats, RecordedStep, StepCosts
from takt.observe.ledger.step_model import StepTimes
from takt.observe.ledger.windows import Windows
from takt.types.step_ids import STEPS_PER_REPLICA, replica_of

MIN_GAP_TARGET_NS = 12_000_000
DEFAULT_TTFT_TARGET_NS = 3_000_000_000
SOLO_STEPS = 3
"""Without an SLO, a gap is late beyond this many steps of a sequence alone, but not below 12 ms."""

MAX_UNSETTLED_STEPS = 4096
NUM_KEPT = 1024
"""Late tokens that are held with their split, the newest."""

_GAP_BUFFER = 16384
_NUM_WAITS = 256
"""Steps whose tokens may be on their way at once."""


OnGaps = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], None]


@dataclass(frozen=True, slots=True)
class SLO:
    """Targets for the P99 of the gaps between tokens and of the times to the first one."""

    itl_p99_ms: float | None = None
    ttft_p99_ms: float | None = None


@dataclass(slots=True)
class Totals:
    """Late tokens of one kind since the start."""

    num: int
    split_ns: Floats
    """float64 `[NUM_CAUSES]`."""

    @property
    def late_ns(self) -> float:
        """Their time beyond the base: what somebody or something has added."""
        return float(self.split_ns.sum() - self.split_ns[Cause.BASE])

    @property
    def unexplained_share(self) -> float:
        late_ns = self.late_ns
        return float(self.split_ns[Cause.UNEXPLAINED]) / late_ns if late_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _FirstToken:
    request_id: str
    choice: int
    arrival_ns: int
    sent_ns: int
    scheduled_ns: int
    written_ns: int
    target_ns: int
    step: int
    num_own_tokens: int
    blocked_ns: int
    waited_ns: int


class Ledger:
    """Fed by the server as tokens are written and steps complete; one thread owns it.

    Writing a token stores its gap; a late one is noted in a ring. `settle` does the arithmetic, at
    a quiet moment or before somebody reads.
    """

    def __init__(
        self,
        clock: Clock,
        slo: SLO | None = None,
        *,
        model: StepTimes | None = None,
        on_gaps: OnGaps | None = None,
        num_engines: int = 1,
    ) -> None:
        """`on_gaps` gets all gaps, in nanoseconds, and the steps that ended them, in the batches
        in which they are settled.

        The numbers of steps tell which engine made them.
        """
        self._clock = clock
        self.slo = slo or SLO()
        self._engines = [StepCosts(model=model) for _ in range(num_engines)]
        self.steps = self._engines[0]
        self._on_gaps = on_gaps
        self._gaps = array("q", bytes(8 * _GAP_BUFFER))
        self._gap_steps = array("q", bytes(8 * _GAP_BUFFER))
        self._num_gaps = 0
        self._notes = GapNotes()
        self._first_notes: deque[_FirstToken] = deque(maxlen=NUM_KEPT)
        self._first_times: list[int] = []
        self.windows = Windows(clock.now_ns())
        self.collections: Callable[[], list[tuple[int, int]]] = list
        """The last garbage collections of this process, as (begin, end)."""
        self.waited_ns: Callable[[], int] = int
        """Time so far that threads which deliver tokens wanted a CPU and had none."""
        self._waits = [[(NO_STEP, 0)] * _NUM_WAITS for _ in range(num_engines)]
        """Of each engine, step and `waited_ns` when it had come, at `step % _NUM_WAITS`."""
        self.late_gaps = Totals(0, np.zeros(NUM_CAUSES))
        self.late_first_tokens = Totals(0, np.zeros(NUM_CAUSES))
        self.kept_gaps: deque[LateToken] = deque(maxlen=NUM_KEPT)
        self.kept_first_tokens: deque[LateToken] = deque(maxlen=NUM_KEPT)
        self.gap_target_ns = MIN_GAP_TARGET_NS
        self.ttft_target_ns = DEFAULT_TTFT_TARGET_NS
        if self.slo.itl_p99_ms is not None:
            self.gap_target_ns = round(self.slo.itl_p99_ms * 1e6)
        if self.slo.ttft_p99_ms is not None:
            self.ttft_target_ns = round(self.slo.ttft_p99_ms * 1e6)

    # -- while tokens are written ---------------------------------------------------------------

    def observe_step(self, step: RecordedStep) -> None:
        engine = replica_of(step.step_id)
        steps = self._engines[engine]
        steps.add(step)
        self._waits[engine][step.step_id % _NUM_WAITS] = (step.step_id, self.waited_ns())
        if steps.num_unsettled >= MAX_UNSETTLED_STEPS:
            self.settle()

    def gap(self, gap_ns: int, step: int) -> None:
        """Every gap, and the step that ended it; late ones go to `late_gap` too."""
        num = self._num_gaps
        self._gaps[num] = gap_ns
        self._gap_steps[num] = step
        self._num_gaps = num + 1
        if num + 1 == _GAP_BUFFER:
            self._settle_gaps()

    def late_gap(
        self,
        request_id: str,
        choice: int,
        position: int,
        begin_ns: int,
        end_ns: int,
        target_ns: int,
        first_step: int,
        last_step: int,
        blocked_ns: int,
    ) -> None:
        """As `GapNotes.note`."""
        self.windows.current.itl.num_late += 1
        self._notes.note(
            request_id,
            choice,
            position,
            begin_ns,
            end_ns,
            target_ns,
            first_step,
            last_step,
            blocked_ns,
            self._waited_since(last_step - 1),
        )
        if self._notes.is_half_full:
            self.settle()

    def first_token(
        self,
        request_id: str,
        choice: int,
        *,
        arrival_ns: int,
        sent_ns: int,
        scheduled_ns: int | None,
        written_ns: int,
        target_ns: int,
        step: int,
        num_own_tokens: int,
        blocked_ns: int,
    ) -> None:
        """The first token of a request; `num_own_tokens` of its prompt had to be computed."""
        self._first_times.append(written_ns - arrival_ns)
        if written_ns - arrival_ns <= target_ns:
            return
        self.windows.current.ttft.num_late += 1
        self._first_notes.append(
            _FirstToken(
                request_id,
                choice,
                arrival_ns,
                sent_ns,
                sent_ns if scheduled_ns is None else scheduled_ns,
                written_ns,
                target_ns,
                NO_STEP if scheduled_ns is None else step,
                num_own_tokens,
                blocked_ns,
                self._waited_since(step - 1),
            )
        )

    def request(self, *, is_good: bool) -> None:
        """A request has ended as it should."""
        self.windows.current.num_requests += 1
        self.windows.current.num_good_requests += is_good

    def _waited_since(self, step: int) -> int:
        """What delivery has waited for a CPU since a step had come; 0 if that is not known."""
        if step < 0:
            return 0
        known, waited_ns = self._waits[replica_of(step)][step % _NUM_WAITS]
        return self.waited_ns() - waited_ns if known == step else 0

    # -- afterwards -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Splits what was noted; takes some hundred microseconds and a few for each late token."""
        self._settle_gaps()
        for steps in self._engines:
            steps.settle()
        self._settle_late_gaps()
        self._settle_late_first_tokens()
        if self.slo.itl_p99_ms is None:
            solo = max(steps.solo_p50_ns + steps.host_p50_ns for steps in self._engines)
            self.gap_target_ns = max(MIN_GAP_TARGET_NS, round(SOLO_STEPS * solo))
        self.windows.advance(self._clock.now_ns())

    @property
    def num_lost(self) -> int:
        """Late gaps that came too fast to be split."""
        return self._notes.num_lost

    def _settle_gaps(self) -> None:
        times = np.array(self._gaps[: self._num_gaps], dtype=np.int64)
        steps = np.array(self._gap_steps[: self._num_gaps], dtype=np.int64)
        self._num_gaps = 0
        window = self.windows.current
        window.itl.add(times)
        window.ttft.add(np.array(self._first_times, dtype=np.int64))
        self._first_times.clear()
        if self._on_gaps is not None and len(times):
            self._on_gaps(times, steps)

    def _settle_late_gaps(self) -> None:
        rows, request_ids = self._notes.take()
        if not len(rows):
            return
        splits = np.zeros((len(rows), NUM_CAUSES))
        for engine, steps in enumerate(self._engines):
            own = np.maximum(rows["last_step"] // STEPS_PER_REPLICA, 0) == engine
            if own.any():
                splits[own] = split_gaps(rows[own], steps, self.collections())
        self.late_gaps.num += len(rows)
        self.late_gaps.split_ns += splits.sum(axis=0)
        for row, request_id, split in list(zip(rows, request_ids, splits, strict=True))[-NUM_KEPT:]:
            self.kept_gaps.append(
                LateToken(
                    request_id,
                    int(row["choice"]),
                    int(row["position"]),
                    int(row["end_ns"]),
                    int(row["end_ns"] - row["begin_ns"]),
                    int(row["target_ns"]),
                    split,
                )
            )

    def _settle_late_first_tokens(self) -> None:
        while self._first_notes:
            note = self._first_notes.popleft()
            split = split_first_token(
                arrival_ns=note.arrival_ns,
                sent_ns=note.sent_ns,
                scheduled_ns=note.scheduled_ns,
                written_ns=note.written_ns,
                step=note.step,
                num_own_tokens=note.num_own_tokens,
                blocked_ns=note.blocked_ns,
                waited_ns=note.waited_ns,
                steps=self._engines[max(replica_of(note.step), 0)],
                collections=self.collections(),
            )
            self.late_first_tokens.num += 1
            self.late_first_tokens.split_ns += split
            self.kept_first_tokens.append(
                LateToken(
                    note.request_id,
                    note.choice,
                    0,
                    note.written_ns,
                    note.written_ns - note.arrival_ns,
                    note.target_ns,
                    split,
                )
            )
