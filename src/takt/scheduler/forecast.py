"""When a request's first token would come, by following the engine's load as a fluid.

Prompts are computed one after the other in their order, each in pieces that leave the streams
their time; streams that run end at a steady rate, as sequences with evenly spread rests do; a
prompt waits while it lacks a seat, KV blocks, or room for one more stream in the decode step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from takt.scheduler.batch_growth import LEAST_CHUNK
from takt.scheduler.gap_risk import HEADROOM
from takt.scheduler.load_snapshot import Job, LoadSnapshot, SnapshotModel
from takt.scheduler.pace import PATIENCE_STEPS
from takt.scheduler.prefill_budget import with_chunk
from takt.scheduler.step_time import StepFeatures

BACKLOG = "prefill_backlog"
SEATS = "max_num_seqs"
KV_CACHE = "kv_cache"
ITL_AT_PEAK = "itl_at_peak"
PROMISES = "earlier_promises"
"""Requests that were let in before would miss their targets."""

_HORIZON_NS = 600e9
"""Beyond ten minutes it is not worth while to know more."""

_LEAST_PIECE = 128
"""Tokens of a prompt that are followed at once: they take too little time for more to change."""


@dataclass(frozen=True, slots=True)
class Forecast:
    ttft_ns: float
    """From the end of the snapshot's step."""
    itl_ns: float
    """P99 of a decode step at the peak of batch and contexts with the request."""
    reason: str
    """What it waits for longest."""
    waits_for_itl: bool
    """Whether at its turn the batch has no room for another stream."""


class Fluid:
    """The load as it goes on from a snapshot; counts are real numbers."""

    def __init__(self, snapshot: LoadSnapshot) -> None:
        self._model = SnapshotModel(snapshot)
        self._peak_ratio, self._room = snapshot.peak_ratio, snapshot.room
        self._least_chunk = snapshot.least_chunk
        self._max_chunk = snapshot.max_num_batched_tokens
        self._seqs = float(snapshot.num_decode_seqs)
        self._kv_tokens = float(snapshot.num_kv_tokens)
        self._share = snapshot.output_share
        self._left = snapshot.num_left_tokens * self._share
        self._seats = float(snapshot.num_free_seats)
        self._free_kv = float(snapshot.num_free_kv_tokens)
        self._limit_ns = snapshot.tightest_itl_ns
        self._time_ns = 0.0
        self._waits_ns = dict.fromkeys((BACKLOG, SEATS, KV_CACHE, ITL_AT_PEAK), 0.0)

    def forecast(self, ahead: Sequence[Job], own: Job) -> Forecast:
        """Follows the jobs ahead, and then the request itself, until its first token."""
        self.run(ahead)
        lacks = self._lacks(own)
        self._run(own)
        return Forecast(
            ttft_ns=self._time_ns,
            itl_ns=self._peak_ns(0, 0.0),
            reason=max(self._waits_ns, key=self._waits_ns.__getitem__),
            waits_for_itl=lacks == ITL_AT_PEAK,
        )

    def run(self, jobs: Sequence[Job]) -> None:
        """Follows jobs to their first tokens, one after the other."""
        for job in jobs:
            if self._time_ns > _HORIZON_NS:
                return
            self._run(job)

    def lateness_ns(self, jobs: Sequence[Job], start_ns: int) -> list[float]:
        """Follows jobs likewise; what each misses its deadline by, as far as the forecast goes."""
        late_ns = []
        for job in jobs:
            if self._time_ns > _HORIZON_NS:
                break
            self._run(job)
            deadline_ns = math.inf if job.deadline_ns is None else job.deadline_ns
            late_ns.append(max(0.0, start_ns + self._time_ns - deadline_ns))
        return late_ns

    # -- one job ------------------------------------------------------------------------------
    def _run(self, job: Job) -> None:
        is_running = job.num_computed_tokens > 0
        while not is_running and (lack := self._lacks(job)) is not None:
            if self._seqs < 0.5 or self._time_ns > _HORIZON_NS:
                break
            self._until_one_ends(lack)
        if not is_running:
            self._seats -= job.num_seqs
            self._free_kv -= job.num_final_tokens
        self._prefill(job)
        self._seqs += job.num_seqs
        self._kv_tokens += job.num_seqs * job.num_prompt_tokens
        self._left += job.num_seqs * job.max_tokens * self._share
        if job.itl_ns is not None:
            self._limit_ns = min(job.itl_ns, self._limit_ns or job.itl_ns)

    def _prefill(self, job: Job) -> None:
        start, end = job.num_computed_tokens, job.num_prompt_tokens
        while start < end and self._time_ns <= _HORIZON_NS:
            decodes = self._decodes()
            chunk = min(end - start, self._max_chunk)
            repeats = 1.0
            if self._limit_ns is not None and self._seqs >= 0.5:
                limit_ns = self._room * HEADROOM * self._limit_ns
                chunk = self._model.largest_chunk(decodes, start, chunk, limit_ns)
                if chunk == 0 and self._least_chunk == 0:
                    self._until_one_ends(BACKLOG)
                    continue
                if chunk == 0:
                    chunk, repeats = min(LEAST_CHUNK, end - start), float(PATIENCE_STEPS)
            # A quarter of what is left at a time: batch and contexts change slowly meanwhile.
            count = math.ceil(max((end - start) / 4, _LEAST_PIECE) / chunk)
            tokens = min(count * chunk, end - start)
            step = with_chunk(decodes, start + tokens // 2, min(chunk, tokens))
            self._pass(repeats * tokens / chunk, self._model.predict_ns(step), BACKLOG)
            start += tokens

    def _until_one_ends(self, reason: str) -> None:
        """Of the streams; fractions of one end in fractions of that time."""
        steps = max(1.0, 2.0 * self._left / (self._seqs * self._seqs))
        self._pass(steps, self._model.predict_ns(self._decodes()), reason)

    def _pass(self, steps: float, step_ns: float, reason: str) -> None:
        """Lets so many steps go by, in which streams go on and some end."""
        self._time_ns += steps * step_ns
        self._waits_ns[reason] += steps * step_ns
        if self._seqs <= 0.0:
            return
        # Rests spread evenly over [0, 2 x mean]: what ends, and what is left of those that don't.
        stay = max(0.0, 1.0 - steps * self._seqs / max(2.0 * self._left, 1e-9))
        ended = self._seqs * (1.0 - stay)
        final = (self._kv_tokens + self._left / self._share) / self._seqs
        self._seats += ended
        self._free_kv += ended * final
        self._kv_tokens = stay * (self._kv_tokens + steps * self._seqs)
        self._left *= stay * stay
        self._seqs *= stay

    # -- what a job needs ---------------------------------------------------------------------
    def _lacks(self, job: Job) -> str | None:
        if self._seats < job.num_seqs:
            return SEATS
        if self._free_kv < job.num_final_tokens:
            return KV_CACHE
        targets = [t for t in (self._limit_ns, job.itl_ns) if t is not None]
        if targets and self._seqs >= 0.5:
            peak_ns = self._peak_ns(job.num_seqs, float(job.num_final_tokens))
            if peak_ns > HEADROOM * min(targets):
                return ITL_AT_PEAK
        return None

    def _peak_ns(self, more_seqs: int, more_kv_tokens: float) -> float:
        """P99 of a decode step, a least chunk beside it, where batch and contexts weigh most.

        After s steps a share 1 - s / 2m of the streams is left, with contexts c + s each: the
        product is largest at s = m - c / 2, or now.
        """
        seqs, kv_tokens = self._seqs, self._kv_tokens
        if seqs > 0.0:
            mean_left, context = self._left / seqs, kv_tokens / seqs
            later = max(0.0, mean_left - context / 2)
            if mean_left > 0.0:
                kv_tokens = seqs * (1.0 - later / (2 * mean_left)) * (context + later)
        num_seqs, num_kv = round(seqs) + more_seqs, round(kv_tokens + more_kv_tokens)
        step = StepFeatures(num_seqs, 0, num_kv, num_kv)
        peak_ns = self._model.predict_ns(with_chunk(step, 0, self._least_chunk))
        return self._peak_ratio * peak_ns

    def _decodes(self) -> StepFeatures:
        num_kv = round(self._kv_tokens)
        return StepFeatures(round(self._seqs), 0, num_kv, num_kv)
