"""Who is let in: decided from the snapshot of the last step, without asking the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from takt.errors import InvalidRequestError
from takt.scheduler.allowance import Allowance, MeanCost
from takt.scheduler.deadline import deadline_order
from takt.scheduler.forecast import ITL_AT_PEAK, PROMISES, Fluid, Forecast
from takt.scheduler.gap_risk import HEADROOM
from takt.scheduler.load_snapshot import Job, LoadSnapshot, SnapshotModel
from takt.scheduler.prefill_budget import with_chunk
from takt.scheduler.slo import NS_PER_MS, SLO
from takt.scheduler.step_time import StepFeatures

CONFIDENCE = 0.85
"""Share of a TTFT target that a predicted time may take: the forecast is of the mean."""

_MAX_ELAPSED_NS = 500_000_000
"""Time since the last step that is taken as progress; an engine may also be held up."""

_MAX_AGE_NS = 5_000_000_000
"""An engine that has idled so long may be faster than it was: the next request is let in, and
tells. Else one that refuses everybody would never learn better."""

UNATTAINABLE = "slo_unattainable"

COSTLY = "costly_prompt"
"""Its first token would be in time, but others would be kept out for it: see `Allowance`."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as admission sees it."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    num_seqs: int
    priority: int
    slo: SLO
    """Its own targets, without the server's."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    ttft_ms: float
    """What its first token would surely be within, as forecasts go."""
    itl_ms: float
    target: SLO
    retry_after_seconds: int
    allowance: Allowance

    @property
    def attainable_ttft_ms(self) -> int:
        """A target of TTFT with which the request would have been let in."""
        least_ns = self.allowance.least_target_ns(self.ttft_ms * NS_PER_MS)
        return math.ceil(least_ns / NS_PER_MS) + 1

    @property
    def allowed_ttft_ms(self) -> float | None:
        """The latest first token with which it would have been let in; None without a target."""
        target_ns = self.target.ttft_ns
        return None if target_ns is None else self.allowance.ttft_ns(target_ns) / NS_PER_MS

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

    def check(self, ask: Ask, now_ns: int) -> Refusal | None:
        """Why a request is not let in, or None.

        Raises `InvalidRequestError` for a target that even an idle server could not meet.
        """
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
        allowance = self._allowance(alone)
        if _is_disturbed(alone, target):
            return Refusal(
                reason=ITL_AT_PEAK,
                ttft_ms=alone.ttft_ms,
                itl_ms=alone.itl_ms,
                target=target,
                retry_after_seconds=math.ceil(_MAX_AGE_NS / 1e9),
                allowance=allowance,
            )
        own = self._job(ask, target, snapshot, now_ns)
        jobs = self._jobs(snapshot)
        ahead = [job for job in jobs if job.order_ns <= own.order_ns]
        behind = jobs[len(ahead) :]
        fluid = Fluid(snapshot)
        found = fluid.forecast(ahead, own)
        elapsed = min(now_ns - snapshot.end_ns, _MAX_ELAPSED_NS)
        if snapshot.is_idle:
            elapsed = 0
        refusal = _judge(found, target, max(found.ttft_ns - elapsed, 0.0), allowance)
        if refusal is None and any(late := fluid.lateness_ns(behind, snapshot.end_ns)):
            # Whom it would make late has been promised a time; one that will be late anyhow holds
            # nobody off: else all would be refused as long as it waits.
            without = _lateness_without(snapshot, ahead, behind)
            late_ns = sum(a for a, b in zip(late, without, strict=False) if b == 0.0)
            if late_ns > 0:
                ttft_ns = found.ttft_ns - elapsed
                refusal = _refusal(PROMISES, found, target, ttft_ns, late_ns, allowance)
        return refusal

    def sent(self, ask: Ask, now_ns: int) -> None:
        """A request goes to the engine; until a snapshot knows of it, it counts here."""
        self._num_sent += 1
        if self.snapshot is not None and self._refuses:
            job = self._job(ask, ask.slo.within(self._slo), self.snapshot, now_ns)
            self._under_way[ask.request_id] = (self._num_sent, job)

    def ended(self, request_id: str) -> None:
        self._under_way.pop(request_id, None)

    def _allowance(self, alone: Alone) -> Allowance:
        alone_ns = alone.ttft_ms * NS_PER_MS
        self._mean_cost.add(alone_ns)
        return Allowance(alone_ns, self._mean_cost.weight(alone_ns), self._slo.ttft_ns)

    def _job(self, ask: Ask, target: SLO, snapshot: LoadSnapshot, now_ns: int) -> Job:
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

    def _jobs(self, snapshot: LoadSnapshot) -> list[Job]:
        """Prompts that the engine has, and those on the way to it, in order."""
        jobs: Iterable[Job] = (*snapshot.jobs, *(job for _, job in self._under_way.values()))
        return sorted(jobs, key=lambda job: job.order_ns)


class Alone(NamedTuple):
    """Latencies of a request that has the server to itself."""

    ttft_ms: float
    itl_ms: float
    """The longest gap, which is the last."""

    @classmethod
    def of(cls, ask: Ask, most_tokens: int, model: SnapshotModel, *, is_p99: bool = True) -> Alone:
        """With steps of at most `most_tokens` of a prompt; their P99, or what is expected.

        Of a prompt's steps one is as long as its P99, not all of them.
        """
        ttft_ns = excess_ns = 0.0
        start = 0
        nothing = StepFeatures(0, 0, 0, 0)
        while start < ask.num_prompt_tokens:
            chunk = min(ask.num_prompt_tokens - start, most_tokens)
            step = with_chunk(nothing, start, chunk)
            step_ns = model.predict_ns(step)
            ttft_ns += step_ns
            if is_p99:
                excess_ns = max(excess_ns, model.p99_ns(step) - step_ns)
            start += chunk
        num_kv = ask.num_seqs * (ask.num_prompt_tokens + ask.max_tokens)
        decode = StepFeatures(ask.num_seqs, 0, num_kv, num_kv)
        itl_ns = model.p99_ns(decode) if is_p99 else model.predict_ns(decode)
        return cls((ttft_ns + excess_ns) / NS_PER_MS, itl_ns / NS_PER_MS)


def check_attainable(
    ask: Ask, target: SLO, snapshot: LoadSnapshot, p99: Alone, refuses: bool
) -> None:
    """Raises `InvalidRequestError` for a target below what the request takes on an idle server.

    That is its P99 for the request's own targets. A server's own count only where it `refuses`, and
    against the time that is expected: what is too late on a machine that is disturbed for a while
    is refused for a while, and no mistake of the client's.
    """
    most_tokens = snapshot.max_num_batched_tokens
    for name, own_ns, target_ns in (
        ("itl_ms", ask.slo.itl_ns, target.itl_ns),
        ("ttft_ms", ask.slo.ttft_ns, target.ttft_ns),
    ):
        if target_ns is None or (own_ns is None and not refuses):
            continue
        asked_ms, best_ms = target_ns / NS_PER_MS, getattr(p99, name)
        if asked_ms >= best_ms:
            continue
        if own_ns is None:
            expected = Alone.of(ask, most_tokens, SnapshotModel(snapshot), is_p99=False)
            best_ms = getattr(expected, name)
            if asked_ms >= best_ms:
                continue
        whose = f"slo.{name} is" if own_ns is not None else f"this server's {name} is"
        raise InvalidRequestError(
            f"{whose} {asked_ms:g}, and this request would take {best_ms:.2f} ms even alone "
            f"on the server: give slo.{name} of at least {math.ceil(best_ms * 10) / 10:g}",
            param=f"slo.{name}",
            code=UNATTAINABLE,
        )


def _is_disturbed(p99: Alone, target: SLO) -> bool:
    """Whether even alone a request's gaps would be too long one time in a hundred: the engine has
    just seen such steps. They are forgotten within seconds."""
    return target.itl_ns is not None and p99.itl_ms * NS_PER_MS > target.itl_ns


def _judge(found: Forecast, target: SLO, ttft_ns: float, allowance: Allowance) -> Refusal | None:
    reason, late_ns = found.reason, 0.0
    if target.ttft_ns is not None:
        late_ns = ttft_ns - CONFIDENCE * allowance.ttft_ns(target.ttft_ns)
        if ttft_ns <= CONFIDENCE * target.ttft_ns:
            reason = COSTLY
    elif found.waits_for_itl:
        reason, late_ns = ITL_AT_PEAK, ttft_ns
    if late_ns <= 0:
        return None
    return _refusal(reason, found, target, ttft_ns, late_ns, allowance)


def _refusal(
    reason: str,
    found: Forecast,
    target: SLO,
    ttft_ns: float,
    late_ns: float,
    allowance: Allowance,
) -> Refusal:
    return Refusal(
        reason=reason,
        ttft_ms=max(ttft_ns, 0.0) / CONFIDENCE / NS_PER_MS,
        itl_ms=found.itl_ns / NS_PER_MS,
        target=target,
        retry_after_seconds=max(1, math.ceil(late_ns / 1e9)),
        allowance=allowance,
    )


def _lateness_without(snapshot: LoadSnapshot, ahead: list[Job], behind: list[Job]) -> list[float]:
    fluid = Fluid(snapshot)
    fluid.run(ahead)
    return fluid.lateness_ns(behind, snapshot.end_ns)
