"""Who is let in: decided from the snapshot of the last step, without asking the engine."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from takt.errors import InvalidRequestError
from takt.scheduler.allowance import CONFIDENCE, Allowance, MeanCost
from takt.scheduler.ask import UNATTAINABLE, Alone, Ask, check_attainable
from takt.scheduler.deadline import NO_TTFT_NS, deadline_order, target_weight
from takt.scheduler.forecast import ITL_AT_PEAK, PROMISES, Fluid, Forecast
from takt.scheduler.gap_risk import HEADROOM
from takt.scheduler.load_snapshot import Job, LoadSnapshot, SnapshotModel
from takt.scheduler.slo import NS_PER_MS, SLO

_MAX_ELAPSED_NS = 500_000_000
"""Time since the last step that is taken as progress; an engine may also be held up."""

_MAX_AGE_NS = 5_000_000_000
"""An engine that has idled so long may be faster than it was: the next request is let in, and
tells. Else one that refuses everybody would never learn better."""

COSTLY = "costly_prompt"
"""Its first token would be in time, but others would be kept out for it: see `Allowance`."""


class Missed(enum.Enum):
    """What a request that is refused would miss."""

    FIRST_TOKEN = enum.auto()
    GAPS = enum.auto()
    BATCH = enum.auto()
    """Room in the decode step: it would wait until others end."""
    PROMISES = enum.auto()
    """Targets of those that were let in before."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    missed: Missed
    predicted_ns: float
    """Its first token."""
    itl_ms: float
    target: SLO
    retry_after_seconds: int
    allowance: Allowance
    attainable_ns: int | None = None
    """Whole milliseconds."""

    @property
    def ttft_ms(self) -> float:
        """What its first token would surely be within, as forecasts go."""
        return self.predicted_ns / CONFIDENCE / NS_PER_MS

    @property
    def attainable_ttft_ms(self) -> int | None:
        """A target of TTFT with which the request would have been let in; None if there is none."""
        return None if self.attainable_ns is None else self.attainable_ns // NS_PER_MS

    @property
    def allowed_ttft_ms(self) -> float | None:
        """What its target counts for at its cost; None without a target."""
        if self.target.ttft_ns is None:
            return None
        if self.reason != COSTLY:
            return self.target.ttft_ns / NS_PER_MS
        return self.allowance.latest_ns(self.target.ttft_ns) / CONFIDENCE / NS_PER_MS

    @property
    def attainable_itl_ms(self) -> float:
        """A target of ITL that its streams, and those that run, would keep at their peak."""
        own_ms = 0.0 if self.target.itl_ns is None else self.target.itl_ns / NS_PER_MS
        return max(own_ms, math.ceil(self.itl_ms / HEADROOM * 10) / 10)


class Admission:
    """Keeps the newest snapshot, and what was let in since it was taken.

    `refuses` False lets everybody wait, and only what could never be met is an error.
    """

    def __init__(self, slo: SLO, *, refuses: bool) -> None:
        self._slo = slo
        self._refuses = refuses
        self.snapshot: LoadSnapshot | None = None
        self._mean_cost = MeanCost()
        self._num_sent = 0
        self._under_way: dict[str, tuple[int, Job]] = {}
        self._beside: list[Job] = []
        """Prompts of the request that is asked for, which are to be let in together."""

    def restart(self) -> None:
        """A new engine starts: nothing is known of it and nothing was sent to it."""
        self.snapshot = None
        self._mean_cost = MeanCost()
        self._num_sent = 0
        self._under_way.clear()

    def take(self, snapshot: LoadSnapshot) -> None:
        """The engine has made a step, and knows of all requests it has taken by then."""
        self.snapshot = snapshot
        taken = snapshot.num_taken
        for name in [n for n, (number, _) in self._under_way.items() if number <= taken]:
            del self._under_way[name]

    def check(self, asks: Sequence[Ask], now_ns: int) -> Refusal | None:
        """Why a request, of one prompt or several, is not let in, or None.

        Raises `InvalidRequestError` for a target that even an idle server could not meet.
        """
        try:
            for ask in asks:
                refusal = self._check(ask, now_ns)
                if refusal is not None:
                    self._check_together(refusal, asks)
                    return refusal
                if self.snapshot is not None and self._refuses and len(asks) > 1:
                    target = ask.slo.within(self._slo)
                    self._beside.append(_job(ask, target, self.snapshot, now_ns))
        finally:
            self._beside.clear()
        return None

    def _check_together(self, refusal: Refusal, asks: Sequence[Ask]) -> None:
        """Raises if only the request's own prompts are in each other's way."""
        snapshot, num_in = self.snapshot, len(self._beside)
        assert snapshot is not None
        is_alone = snapshot.is_idle and not self._under_way
        if num_in and is_alone and refusal.missed is not Missed.GAPS:
            raise InvalidRequestError(
                f"of the request's {len(asks)} prompts even an idle server could let in {num_in} "
                f"at a time, if all are to have their targets ({refusal.reason}): send them in "
                "several requests",
                param="prompt",
                code=UNATTAINABLE,
            )

    def _check(self, ask: Ask, now_ns: int) -> Refusal | None:
        snapshot = self.snapshot
        if snapshot is None:
            return None
        target = ask.slo.within(self._slo)
        is_probe = snapshot.is_idle and not self._under_way
        is_probe = is_probe and now_ns - snapshot.end_ns > _MAX_AGE_NS
        judges = self._refuses and not is_probe
        if not target.is_given or not (ask.slo.is_given or judges):
            return None
        most_tokens = snapshot.max_num_batched_tokens
        alone = Alone.of(ask, most_tokens, SnapshotModel(snapshot))
        check_attainable(ask, target, snapshot, alone, judges)
        if not judges:
            return None
        load = _Load(snapshot, self._jobs(snapshot), now_ns)
        allowance = Allowance(
            alone_ns=alone.ttft_ms * NS_PER_MS,
            first_ns=load.first_ns(ask, target),
            mean_ns=self._mean_cost.mean_ns,
            server_ttft_ns=self._slo.ttft_ns,
        )
        refusal = _disturbed(alone, target, allowance) or load.judge(ask, target, allowance)
        if refusal is None:
            return None
        return replace(refusal, attainable_ns=load.attainable_ns(ask, refusal))

    def sent(self, ask: Ask, now_ns: int) -> None:
        """A request goes to the engine; until a snapshot knows of it, it counts here."""
        self._num_sent += 1
        if self.snapshot is not None and self._refuses:
            job = _job(ask, ask.slo.within(self._slo), self.snapshot, now_ns)
            self._under_way[ask.request_id] = (self._num_sent, job)
            most_tokens = self.snapshot.max_num_batched_tokens
            alone = Alone.of(ask, most_tokens, SnapshotModel(self.snapshot))
            self._mean_cost.add(alone.ttft_ms * NS_PER_MS)

    def ended(self, request_id: str) -> None:
        self._under_way.pop(request_id, None)

    def _jobs(self, snapshot: LoadSnapshot) -> list[Job]:
        """Prompts that the engine has, and those on the way to it, in order."""
        under_way = (job for _, job in self._under_way.values())
        jobs = (*snapshot.jobs, *under_way, *self._beside)
        return sorted(jobs, key=lambda job: job.order_ns)


class _Load:
    """The engine's load as a request finds it."""

    def __init__(self, snapshot: LoadSnapshot, jobs: list[Job], now_ns: int) -> None:
        """`jobs` are in order."""
        self._snapshot = snapshot
        self._jobs = jobs
        self._now_ns = now_ns
        elapsed_ns = min(now_ns - snapshot.end_ns, _MAX_ELAPSED_NS)
        self._elapsed_ns = 0 if snapshot.is_idle else elapsed_ns

    def judge(self, ask: Ask, target: SLO, allowance: Allowance) -> Refusal | None:
        fluid = Fluid(self._snapshot)
        ahead, behind, own = self._place(ask, target)
        found = fluid.forecast(ahead, own)
        predicted_ns = self._from_now(found)
        refusal = _judge(found, target, predicted_ns, allowance)
        if refusal is None and any(late := fluid.lateness_ns(behind, self._snapshot.end_ns)):
            # Whom it would make late has been promised a time; one that will be late anyhow holds
            # nobody off: else all would be refused as long as it waits.
            without = _lateness_without(self._snapshot, ahead, behind)
            late_ns = sum(a for a, b in zip(late, without, strict=False) if b == 0.0)
            if late_ns > 0:
                refusal = _refusal(
                    PROMISES, Missed.PROMISES, found, target, predicted_ns, late_ns, allowance
                )
        return refusal

    def first_ns(self, ask: Ask, target: SLO) -> float:
        """To its first token, were there no prompts but its own."""
        return self._from_now(Fluid(self._snapshot).forecast([], self._job(ask, target)))

    def attainable_ns(self, ask: Ask, refusal: Refusal) -> int | None:
        """A target of TTFT with which it is let in, if there is one: for the place that it has, or
        for one behind all others."""
        allowance, itl_ns = refusal.allowance, refusal.target.itl_ns
        if refusal.missed is not Missed.PROMISES:
            target = SLO(itl_ns, _full_ms(allowance.least_target_ns(refusal.predicted_ns)))
            if self.judge(ask, target, allowance) is None:
                return target.ttft_ns
        last_ns = self._last_place_ns(ask, refusal.target)
        if last_ns is None:
            return None
        own = self._job(ask, SLO(itl_ns, last_ns))
        predicted_ns = self._from_now(Fluid(self._snapshot).forecast(self._jobs, own))
        return _full_ms(max(last_ns, allowance.least_target_ns(predicted_ns)))

    def _last_place_ns(self, ask: Ask, target: SLO) -> int | None:
        """The least target of TTFT that puts it behind all jobs; None if no target does."""
        ttft_ns = target.ttft_ns or NO_TTFT_NS
        missing_ns = self._jobs[-1].order_ns - self._job(ask, target).order_ns if self._jobs else 0
        if missing_ns <= 0:
            return ttft_ns
        weight = target_weight(ask.priority)
        return ttft_ns + math.ceil(missing_ns / weight) if weight > 0 else None

    def _place(self, ask: Ask, target: SLO) -> tuple[list[Job], list[Job], Job]:
        """Jobs ahead and behind, and the request's own."""
        own = self._job(ask, target)
        num_ahead = sum(job.order_ns <= own.order_ns for job in self._jobs)
        return self._jobs[:num_ahead], self._jobs[num_ahead:], own

    def _job(self, ask: Ask, target: SLO) -> Job:
        return _job(ask, target, self._snapshot, self._now_ns)

    def _from_now(self, found: Forecast) -> float:
        return max(found.ttft_ns - self._elapsed_ns, 0.0)


def _job(ask: Ask, target: SLO, snapshot: LoadSnapshot, now_ns: int) -> Job:
    return Job(
        order_ns=deadline_order(
            now_ns,
            target.ttft_ns,
            ask.priority,
            ask.num_prompt_tokens,
            snapshot.prefill_token_ns,
        ),
        num_prompt_tokens=ask.num_prompt_tokens,
        num_computed_tokens=0,
        num_seqs=ask.num_seqs,
        max_tokens=max(ask.max_tokens, 1),
        itl_ns=target.itl_ns,
        deadline_ns=None if target.ttft_ns is None else now_ns + target.ttft_ns,
    )


def _disturbed(p99: Alone, target: SLO, allowance: Allowance) -> Refusal | None:
    """Refuses while even alone a request's gaps would be too long one time in a hundred: the engine
    has just seen such steps. They are forgotten within seconds."""
    if target.itl_ns is None or p99.itl_ms * NS_PER_MS <= target.itl_ns:
        return None
    return Refusal(
        reason=ITL_AT_PEAK,
        missed=Missed.GAPS,
        predicted_ns=CONFIDENCE * allowance.alone_ns,
        itl_ms=p99.itl_ms,
        target=target,
        retry_after_seconds=math.ceil(_MAX_AGE_NS / 1e9),
        allowance=allowance,
    )


def _judge(
    found: Forecast, target: SLO, predicted_ns: float, allowance: Allowance
) -> Refusal | None:
    reason, missed, late_ns = found.reason, Missed.FIRST_TOKEN, 0.0
    if target.ttft_ns is not None:
        late_ns = predicted_ns - allowance.latest_ns(target.ttft_ns)
        if predicted_ns <= CONFIDENCE * target.ttft_ns:
            reason = COSTLY
    elif found.waits_for_itl:
        reason, missed, late_ns = ITL_AT_PEAK, Missed.BATCH, predicted_ns
    if late_ns <= 0:
        return None
    return _refusal(reason, missed, found, target, predicted_ns, late_ns, allowance)


def _refusal(
    reason: str,
    missed: Missed,
    found: Forecast,
    target: SLO,
    predicted_ns: float,
    late_ns: float,
    allowance: Allowance,
) -> Refusal:
    return Refusal(
        reason=reason,
        missed=missed,
        predicted_ns=predicted_ns,
        itl_ms=found.itl_ns / NS_PER_MS,
        target=target,
        retry_after_seconds=max(1, math.ceil(late_ns / 1e9)),
        allowance=allowance,
    )


def _full_ms(ns: float) -> int:
    """As clients give them; never less."""
    return math.ceil(ns / NS_PER_MS) * NS_PER_MS


def _lateness_without(snapshot: LoadSnapshot, ahead: list[Job], behind: list[Job]) -> list[float]:
    fluid = Fluid(snapshot)
    fluid.run(ahead)
    return fluid.lateness_ns(behind, snapshot.end_ns)
