"""Late tokens: noted when they are written, split over causes afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.observe.ledger.causes import NUM_CAUSES, Cause
from takt.observe.ledger.step_costs import Floats, Ints, StepCosts

NO_STEP = -1

_NOTE = np.dtype(
    [
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("target_ns", np.int64),
        ("first_step", np.int64),
        ("last_step", np.int64),
        ("blocked_ns", np.int64),
        ("waited_ns", np.int64),
        ("position", np.int64),
        ("choice", np.int64),
    ]
)


@dataclass(frozen=True, slots=True)
class LateToken:
    """One late gap, or one late first token, and where its time went."""

    request_id: str
    choice: int
    position: int
    """Number of the token in its choice, from 0."""
    at_ns: int
    """When it was written."""
    late_ns: int
    """The gap, or the time to the first token."""
    target_ns: int
    split_ns: Floats
    """float64 `[NUM_CAUSES]`; sums to `late_ns`."""


class GapNotes:
    """Late gaps that wait to be split: a ring, so that a flood of them costs no memory."""

    def __init__(self, capacity: int = 8192) -> None:
        self._rows = np.zeros(capacity, dtype=_NOTE)
        self._request_ids = [""] * capacity
        self._num = 0
        self._taken = 0
        self.num_lost = 0
        """Overwritten before they were split."""

    @property
    def is_half_full(self) -> bool:
        return 2 * (self._num - self._taken) >= len(self._rows)

    def note(
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
        waited_ns: int = 0,
    ) -> None:
        """A gap between two tokens of a choice, written at `begin_ns` and `end_ns`.

        The tokens came with steps `first_step` and `last_step`. For the last `blocked_ns` the
        socket took nothing; since the last step, threads that deliver have waited `waited_ns` for
        a CPU.
        """
        place = self._num % len(self._rows)
        self._rows[place] = (
            begin_ns,
            end_ns,
            target_ns,
            first_step,
            last_step,
            blocked_ns,
            waited_ns,
            position,
            choice,
        )
        self._request_ids[place] = request_id
        self._num += 1

    def take(self) -> tuple[npt.NDArray[np.void], list[str]]:
        """What was noted since the last call, oldest first."""
        capacity = len(self._rows)
        first = max(self._taken, self._num - capacity)
        self.num_lost += first - self._taken
        places = np.arange(first, self._num) % capacity
        self._taken = self._num
        return self._rows[places], [self._request_ids[place] for place in places.tolist()]


def split_gaps(
    rows: npt.NDArray[np.void], steps: StepCosts, collections: list[tuple[int, int]]
) -> Floats:
    """float64 `[num_gaps, NUM_CAUSES]`, in nanoseconds; each row sums to its gap.

    The engine took from the end of the step of the first token to that of the second. What the gap
    has beyond it is delivery: the second token took longer from its step's end to the socket than
    the first one did; `collections` are the server's garbage collections as (begin, end), and what
    its threads waited for a CPU meanwhile was stolen. Steps between that brought the sequence no
    token are preemption if one of them preempted, otherwise the sequence queued for a place in
    them.
    """
    gaps = (rows["end_ns"] - rows["begin_ns"]).astype(np.float64)
    split = np.zeros((len(rows), NUM_CAUSES))
    first, last = rows["first_step"], rows["last_step"]
    known = steps.knows(first, last) & (first != NO_STEP)
    blocked = np.clip(rows["blocked_ns"], 0, gaps)
    split[:, Cause.SLOW_CLIENT] = blocked
    split[~known, Cause.UNEXPLAINED] = (gaps - blocked)[~known]
    if known.any():
        engine, delivery, ready = _engine_and_delivery(rows[known], steps)
        slow = blocked[known]
        left = gaps[known] - slow
        # Of the delivery, what the socket did not block.
        delivery = np.clip(delivery - slow, 0.0, left)
        collected = np.minimum(_overlap(ready, rows["end_ns"][known], collections), delivery)
        waited = np.clip(rows["waited_ns"][known], 0, delivery - collected)
        split[known, Cause.GARBAGE_COLLECTION] += collected
        split[known, Cause.STOLEN_CPU] += waited
        split[known, Cause.DELIVERY] += delivery - collected - waited
        split[known] += _scaled(engine, left - delivery)
    return split


def _engine_and_delivery(
    rows: npt.NDArray[np.void], steps: StepCosts
) -> tuple[Floats, Floats, Ints]:
    """The engine's split of each gap, how much longer its delivery took, and the last step's end.

    All of it in nanoseconds.
    """
    first, last = rows["first_step"], rows["last_step"]
    begins, ends = steps.ends_ns(first), steps.ends_ns(last)
    before, after = rows["begin_ns"] - begins, rows["end_ns"] - ends
    engine = steps.between(first, last)
    missed = last - first > 1
    if missed.any():
        # All but the step of the token itself passed without it.
        own = steps.between(last - 1, last)
        waited = (engine - own).sum(axis=1)
        preempted = steps.num_preemptions(first, last) > 0
        engine = np.where(missed[:, None], own, engine)
        engine[:, Cause.PREEMPTION] += np.where(missed & preempted, waited, 0.0)
        engine[:, Cause.QUEUEING] += np.where(missed & ~preempted, waited, 0.0)
    return engine, (after - before).astype(np.float64), ends


def _overlap(begins: Ints, ends: Ints, intervals: list[tuple[int, int]]) -> Floats:
    total = np.zeros(len(begins))
    for begin, end in intervals:
        total += np.clip(np.minimum(ends, end) - np.maximum(begins, begin), 0, None)
    return total


def _scaled(split: Floats, totals: Floats) -> Floats:
    """Rows stretched to sum to `totals`; a row of nothing is unexplained."""
    sums = split.sum(axis=1)
    result: Floats = split * (totals / np.maximum(sums, 1.0))[:, None]
    empty = sums < 1.0
    result[empty] = 0.0
    result[empty, Cause.UNEXPLAINED] = totals[empty]
    return result


def split_first_token(
    *,
    arrival_ns: int,
    sent_ns: int,
    scheduled_ns: int,
    written_ns: int,
    step: int,
    num_own_tokens: int,
    blocked_ns: int,
    waited_ns: int,
    steps: StepCosts,
    collections: list[tuple[int, int]],
) -> Floats:
    """float64 `[NUM_CAUSES]`: a time to the first token, in nanoseconds.

    Reading and tokenising the request is delivery, as is the way back; from there to the first
    step it queues. In the steps that follow, its share of the prompt tokens is its own work; the
    rest of their prompt time is others' interference. On the way back, `waited_ns` were stolen.
    """
    split = np.zeros(NUM_CAUSES)
    last = np.array([step])
    if step == NO_STEP or not steps.knows(last, last)[0]:
        split[Cause.UNEXPLAINED] = written_ns - arrival_ns
        return split
    begin = steps.first_at_or_after(scheduled_ns, step)
    end_ns = int(steps.ends_ns(last)[0])
    before = np.array([begin - 1])
    engine = steps.between(before, last)
    engine = _scaled(engine, np.array([float(max(end_ns - scheduled_ns, 0))]))[0]
    own = min(num_own_tokens / max(int(steps.num_prompt_tokens(before, last)[0]), 1), 1.0)
    moved = own * engine[Cause.PREFILL_INTERFERENCE]
    engine[Cause.PREFILL_INTERFERENCE] -= moved
    engine[Cause.BASE] += moved
    split += engine
    split[Cause.QUEUEING] += max(scheduled_ns - sent_ns, 0)
    blocked = min(blocked_ns, max(written_ns - end_ns, 0))
    split[Cause.SLOW_CLIENT] += blocked
    waited = float(np.clip(waited_ns, 0, max(written_ns - end_ns - blocked, 0)))
    split[Cause.STOLEN_CPU] += waited
    rest = max(written_ns - arrival_ns - split.sum(), 0.0)
    collected = _overlap(np.array([arrival_ns]), np.array([sent_ns]), collections)[0]
    collected += _overlap(np.array([end_ns]), np.array([written_ns]), collections)[0]
    split[Cause.GARBAGE_COLLECTION] += min(collected, rest)
    split[Cause.DELIVERY] += max(rest - collected, 0.0)
    return split
