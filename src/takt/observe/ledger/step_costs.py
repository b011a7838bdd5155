"""Where the time of each step went, and so the time between any two of them."""

from __future__ import annotations

from operator import attrgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takt.observe.ledger.causes import NUM_CAUSES, Cause
from takt.observe.ledger.step_model import OnlineStepTimes, StepTimes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class RecordedStep(Protocol):
    """What is read of one step's record; times are of one monotonic clock."""

    step_id: int
    schedule_start_ns: int
    run_start_ns: int
    run_end_ns: int
    update_end_ns: int
    num_decode_seqs: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    num_qk_pairs: int
    num_running: int
    num_waiting: int
    num_preempted: int
    num_decode_kv_tokens: int
    stolen_run_ns: int
    stolen_host_ns: int
    gc_ns: int
    predicted_ns: int


_FIELDS = (
    "schedule_start_ns",
    "run_start_ns",
    "run_end_ns",
    "update_end_ns",
    "num_decode_seqs",
    "num_prefill_tokens",
    "num_kv_tokens_read",
    "num_qk_pairs",
    "num_running",
    "num_waiting",
    "num_preempted",
    "num_decode_kv_tokens",
    "stolen_run_ns",
    "stolen_host_ns",
    "gc_ns",
    "predicted_ns",
)


_fields_of = attrgetter(*_FIELDS)


class StepCosts:
    """The last `capacity` steps of an engine, each split over causes, with running sums.

    A step's time goes from the end of the step before to its own end; after an engine that had
    nothing to do, from its own beginning. `add` keeps a reference; the arithmetic waits for
    `settle`.
    """

    def __init__(self, capacity: int = 16384, model: StepTimes | None = None) -> None:
        """`model` predicts runs; without one they are learned from the steps themselves."""
        self._capacity = capacity
        self._new: list[RecordedStep] = []
        self._given = model
        self.learned = OnlineStepTimes()
        self._first_id = 0
        self._next_id = 0
        self._had_work = False
        self._last_end_ns = 0
        self._sums = np.zeros((capacity + 1, NUM_CAUSES))
        """Sums of all splits up to and with a step, at `step_id % (capacity + 1)`."""
        self._ends_ns = np.zeros(capacity + 1, dtype=np.int64)
        self._starts_ns = np.zeros(capacity + 1, dtype=np.int64)
        self._preemptions = np.zeros(capacity + 1, dtype=np.int64)
        self._prompt_tokens = np.zeros(capacity + 1, dtype=np.int64)
        self._host_ns = np.zeros(capacity + 1)
        self._solo_ns = np.zeros(capacity + 1)
        self.host_p50_ns = 0.0
        self.solo_p50_ns = 0.0
        """Medians over the last steps: Python between runs, and the run of a sequence alone."""

    def add(self, step: RecordedStep) -> None:
        self._new.append(step)

    @property
    def num_unsettled(self) -> int:
        return len(self._new)

    def settle(self) -> None:
        """Splits what was added since. Ids that start again are those of a new engine."""
        steps, self._new = self._new, []
        begin = 0
        for index, step in enumerate(steps):
            if step.step_id != self._next_id + index - begin:
                self._settle(steps[begin:index])
                begin = index
                self._restart(step.step_id)
        self._settle(steps[begin:])

    def knows(self, first: Ints, last: Ints) -> npt.NDArray[np.bool_]:
        """Whether steps `first` (the one before an interval) to `last` are held."""
        oldest = max(self._first_id - 1, self._next_id - self._capacity)
        return (first >= oldest) & (first >= 0) & (last < self._next_id) & (first <= last)

    def ends_ns(self, step_ids: Ints) -> Ints:
        return self._ends_ns[step_ids % (self._capacity + 1)]

    def between(self, first: Ints, last: Ints) -> Floats:
        """float64 `[num, NUM_CAUSES]`: the steps after `first`, to `last`, by cause, in ns."""
        size = self._capacity + 1
        return self._sums[last % size] - self._sums[first % size]

    def num_preemptions(self, first: Ints, last: Ints) -> Ints:
        size = self._capacity + 1
        return self._preemptions[last % size] - self._preemptions[first % size]

    def num_prompt_tokens(self, first: Ints, last: Ints) -> Ints:
        """Prompt tokens computed in the steps after `first`, to `last`."""
        size = self._capacity + 1
        return self._prompt_tokens[last % size] - self._prompt_tokens[first % size]

    def first_at_or_after(self, start_ns: int, last: int) -> int:
        """The earliest held step, up to `last`, that began at `start_ns` or later."""
        size = self._capacity + 1
        step_id = last
        oldest = max(self._first_id, self._next_id - self._capacity)
        while step_id > oldest and self._starts_ns[(step_id - 1) % size] >= start_ns:
            step_id -= 1
        return step_id

    def _restart(self, step_id: int) -> None:
        self._first_id = self._next_id = step_id
        self._had_work = False
        before = (step_id - 1) % (self._capacity + 1)
        self._sums[before] = 0.0
        self._preemptions[before] = 0
        self._prompt_tokens[before] = 0

    def _settle(self, steps: list[RecordedStep]) -> None:
        steps_left = steps[-self._capacity :]
        if len(steps_left) < len(steps):
            self._restart(steps_left[0].step_id)
        if not steps_left:
            return
        rows = np.array([_fields_of(step) for step in steps_left], dtype=np.int64)
        columns = dict(zip(_FIELDS, np.ascontiguousarray(rows.T), strict=True))
        costs = self._costs(columns)
        size = self._capacity + 1
        ids = np.arange(self._next_id, self._next_id + len(steps_left))
        places, before = ids % size, (self._next_id - 1) % size
        self._sums[places] = self._sums[before] + np.cumsum(costs, axis=0)
        self._preemptions[places] = self._preemptions[before] + np.cumsum(columns["num_preempted"])
        prompt_tokens = np.cumsum(columns["num_prefill_tokens"])
        self._prompt_tokens[places] = self._prompt_tokens[before] + prompt_tokens
        self._ends_ns[places] = columns["update_end_ns"]
        self._starts_ns[places] = columns["schedule_start_ns"]
        self._next_id += len(steps_left)
        recent = np.arange(max(self._first_id, self._next_id - 512), self._next_id) % size
        self.host_p50_ns = float(np.median(self._host_ns[recent]))
        self.solo_p50_ns = float(np.median(self._solo_ns[recent]))

    def _costs(self, columns: dict[str, Ints]) -> Floats:
        """float64 `[num_steps, NUM_CAUSES]`; each row sums to its step's time."""
        c = {name: column.astype(np.float64) for name, column in columns.items()}
        starts, ends = columns["schedule_start_ns"], columns["update_end_ns"]
        had_work = np.concatenate(
            [[self._had_work], (c["num_running"] + c["num_waiting"])[:-1] > 0]
        )
        begins = np.where(had_work, np.concatenate([[self._last_end_ns], ends[:-1]]), starts)
        begins = np.minimum(begins, ends)
        self._had_work = bool(c["num_running"][-1] + c["num_waiting"][-1] > 0)
        self._last_end_ns = int(ends[-1])
        total = (ends - begins).astype(np.float64)
        run = np.minimum(c["run_end_ns"] - c["run_start_ns"], total)
        costs = np.zeros((len(total), NUM_CAUSES))
        self._split_host(costs, total - run, c)
        self._split_run(costs, run, c)
        places = np.arange(self._next_id, self._next_id + len(total)) % (self._capacity + 1)
        self._host_ns[places] = costs[:, Cause.ENGINE_HOST]
        return costs

    def _split_host(self, costs: Floats, host: Floats, c: dict[str, Floats]) -> None:
        collected = np.minimum(c["gc_ns"], host)
        stolen = np.minimum(c["stolen_host_ns"], host - collected)
        costs[:, Cause.GARBAGE_COLLECTION] = collected
        costs[:, Cause.STOLEN_CPU] = stolen
        costs[:, Cause.ENGINE_HOST] = host - collected - stolen

    def _engines_own(self, whole: Floats, c: dict[str, Floats]) -> Floats:
        """The engine's own predictions of runs, where it made some: they are of whole steps."""
        host = c["run_start_ns"] - c["schedule_start_ns"] + c["update_end_ns"] - c["run_end_ns"]
        return np.where(c["predicted_ns"] > 0, c["predicted_ns"] - np.median(host), whole)

    def _split_run(self, costs: Floats, run: Floats, c: dict[str, Floats]) -> None:
        """Stolen time is what was measured, up to what the run lasted beyond its prediction.

        Work of a thread that lost its core is done by others, so a step may lose less than that.
        """
        seqs, prefill = c["num_decode_seqs"], c["num_prefill_tokens"]
        kv, pairs, decode_kv = c["num_kv_tokens_read"], c["num_qk_pairs"], c["num_decode_kv_tokens"]
        stolen_ns = c["stolen_run_ns"]
        if self._given is None:
            self.learned.learn(seqs, prefill, kv, pairs, run, stolen_ns)
            if not self.learned.is_ready:
                stolen = np.minimum(stolen_ns, run)
                costs[:, Cause.STOLEN_CPU] += stolen
                costs[:, Cause.UNEXPLAINED] += run - stolen
                return
        model: StepTimes = self._given or self.learned
        none = np.zeros(len(run))
        num_seqs = np.maximum(seqs, 1.0)
        mean_kv = decode_kv / num_seqs
        solo = model.predict(none + 1.0, none, mean_kv, mean_kv)
        # Without decodes, the floor of a step is still that of one sequence.
        decodes = np.maximum(model.predict(num_seqs, none, decode_kv, decode_kv), solo)
        whole = np.where(prefill > 0, model.predict(seqs, prefill, kv, pairs), decodes)
        if self._given is None and not self.learned.knows_prompts:
            whole = np.where(prefill > 0, np.maximum(run - stolen_ns, decodes), whole)
        whole = np.maximum(self._engines_own(whole, c), solo)
        decodes = np.where(prefill > 0, np.minimum(decodes, whole), whole)
        stolen = np.clip(run - whole, 0.0, stolen_ns)
        rest = run - stolen
        explained = np.minimum(rest, whole * self.learned.band)
        scale = explained / np.maximum(whole, 1.0)
        costs[:, Cause.STOLEN_CPU] += stolen
        costs[:, Cause.BASE] += solo * scale
        costs[:, Cause.BATCH_GROWTH] += (decodes - solo) * scale
        costs[:, Cause.PREFILL_INTERFERENCE] += (whole - decodes) * scale
        costs[:, Cause.UNEXPLAINED] += rest - explained
        places = np.arange(self._next_id, self._next_id + len(run)) % (self._capacity + 1)
        self._solo_ns[places] = solo
