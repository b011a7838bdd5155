"""Where the time of each step went, and so the time between any two of them."""

from __future__ import annotations

from operator import attrgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takt.observe.ledger.causes import NUM_CAUSES, Cause
from takt.observe.ledger.step_model import MAX_BAND, OnlineStepTimes, StepTimes

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
    computed_ns: int
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
    "computed_ns",
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
        head = np.clip(c["run_start_ns"] - begins, 0.0, total - run)
        self._split_host(costs, total - run, head, c)
        self._split_run(costs, run, c)
        places = np.arange(self._next_id, self._next_id + len(total)) % (self._capacity + 1)
        self._host_ns[places] = costs[:, Cause.ENGINE_HOST]
        return costs

    def _split_host(self, costs: Floats, host: Floats, head: Floats, c: dict[str, Floats]) -> None:
        """`head` is the host's time in front of the run; the rest is behind it.

        Stolen time is reported by the run that follows: what its own head cannot hold belongs
        behind the run before.
        """
        collected = np.minimum(c["gc_ns"], host)
        in_head = np.minimum(c["stolen_host_ns"], head)
        behind = np.append((c["stolen_host_ns"] - in_head)[1:], 0.0)
        stolen = in_head + np.minimum(behind, host - head)
        stolen = np.minimum(stolen, host - collected)
        costs[:, Cause.GARBAGE_COLLECTION] = collected
        costs[:, Cause.STOLEN_CPU] = stolen
        costs[:, Cause.ENGINE_HOST] = host - collected - stolen

    def _split_run(self, costs: Floats, run: Floats, c: dict[str, Floats]) -> None:
        """Stolen time is what was measured, up to what the run lasted beyond its prediction: work
        of a thread that lost its core is done by others, so a step may lose less than that.

        What remains beyond the prediction is contention as far as the threads computed for longer
        than such a step's do, and otherwise unexplained.
        """
        seqs, prefill = c["num_decode_seqs"], c["num_prefill_tokens"]
        kv, pairs = c["num_kv_tokens_read"], c["num_qk_pairs"]
        stolen_ns = c["stolen_run_ns"]
        if self._given is None:
            self.learned.learn(seqs, prefill, kv, pairs, run, stolen_ns, c["computed_ns"])
            if not self.learned.is_ready:
                stolen = np.minimum(stolen_ns, run)
                costs[:, Cause.STOLEN_CPU] += stolen
                costs[:, Cause.UNEXPLAINED] += run - stolen
                return
        solo, decodes, whole = self._predicted(run, c)
        stolen = np.clip(run - whole, 0.0, stolen_ns)
        rest = run - stolen
        explained = np.minimum(rest, whole * self.learned.band)
        contention = np.clip(self._computed_longer(whole, c), 0.0, rest - explained)
        scale = explained / np.maximum(whole, 1.0)
        costs[:, Cause.STOLEN_CPU] += stolen
        costs[:, Cause.CONTENTION] += contention
        costs[:, Cause.BASE] += solo * scale
        costs[:, Cause.BATCH_GROWTH] += (decodes - solo) * scale
        costs[:, Cause.PREFILL_INTERFERENCE] += (whole - decodes) * scale
        costs[:, Cause.UNEXPLAINED] += rest - explained - contention
        places = np.arange(self._next_id, self._next_id + len(run)) % (self._capacity + 1)
        self._solo_ns[places] = solo

    def _predicted(self, run: Floats, c: dict[str, Floats]) -> tuple[Floats, Floats, Floats]:
        """What undisturbed runs take: of a sequence alone, of the decodes, and of the whole."""
        seqs, prefill = c["num_decode_seqs"], c["num_prefill_tokens"]
        decode_kv = c["num_decode_kv_tokens"]
        model: StepTimes = self._given or self.learned
        none = np.zeros(len(run))
        num_seqs = np.maximum(seqs, 1.0)
        mean_kv = decode_kv / num_seqs
        solo = model.predict(none + 1.0, none, mean_kv, mean_kv)
        # Without decodes, the floor of a step is still that of one sequence.
        decodes = np.maximum(model.predict(num_seqs, none, decode_kv, decode_kv), solo)
        mixed = model.predict(seqs, prefill, c["num_kv_tokens_read"], c["num_qk_pairs"])
        whole = np.where(prefill > 0, mixed, decodes)
        if self._given is None and not self.learned.knows_prompts:
            whole = np.where(prefill > 0, np.maximum(run - c["stolen_run_ns"], decodes), whole)
        own = self._engines_own(whole, c)
        if self._given is None:
            # The engine's model is the more exact one, but it follows the machine, disturbances
            # too: it counts within the scatter of undisturbed steps.
            own = np.minimum(own, MAX_BAND * whole)
        whole = np.maximum(own, solo)
        return solo, np.where(prefill > 0, np.minimum(decodes, whole), whole), whole

    def _engines_own(self, whole: Floats, c: dict[str, Floats]) -> Floats:
        """The engine's own predictions of runs, where it made some: they are of whole steps."""
        host = c["run_start_ns"] - c["schedule_start_ns"] + c["update_end_ns"] - c["run_end_ns"]
        return np.where(c["predicted_ns"] > 0, c["predicted_ns"] - np.median(host), whole)

    def _computed_longer(self, whole: Floats, c: dict[str, Floats]) -> Floats:
        """By how much a run would exceed `whole` through its threads' computing alone."""
        share, computed = self.learned.computing_share(c["num_prefill_tokens"]), c["computed_ns"]
        is_known = (share > 0) & (computed > 0)
        return np.where(is_known, computed / np.maximum(share, 1e-9) - whole, 0.0)
