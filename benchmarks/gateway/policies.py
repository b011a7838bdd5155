"""The gateway's retry policy against fixed waits, on the committed trace of faults.

Runs in simulated time: the gateway's own leader, router, breaker and budget, with an upstream that
fails as the trace says. `fixed` is what many clients do: three retries, 5 s apart, whatever the
upstream answers.
"""

from __future__ import annotations

import asyncio
import csv
import random
import selectors
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.gateway.trace import BACKGROUND, DURATION_SECONDS
from prometheus_client import CollectorRegistry

from takt.gateway.assignment import Assignment
from takt.gateway.attempt import AttemptFailedError, OpenAnswer, OutgoingRequest
from takt.gateway.budget import RetryBudget
from takt.gateway.dead_letter_notices import DeadLetterNotices
from takt.gateway.execution import Execution
from takt.gateway.keeper import LeaseKeeper
from takt.gateway.leader import Leader
from takt.gateway.metrics import GatewayMetrics
from takt.gateway.options import GatewayOptions
from takt.gateway.parts import Parts
from takt.gateway.policy import build_policy
from takt.gateway.recorder import NoRecorder
from takt.gateway.retry import Failure, Outcome, status_outcome
from takt.gateway.router import Router
from takt.gateway.sealing import PlainSealer
from takt.gateway.states import Head, State
from takt.gateway.tracing import NoRequestSpan
from takt.gateway.upstream import Upstream

TRACE = Path(__file__).parents[1] / "traces" / "gateway_faults.csv"
REQUESTS_PER_SECOND = 10
SERVICE_SECONDS = 0.3
FAILURE_SECONDS = {0: 0.001, 500: 0.1, 502: 0.05, 503: 0.002}
URL = "http://upstream"


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Time passes at once: a wait only sets the clock."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self._loop.now += timeout
        return []


class LoopClock:
    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return round(self._loop.now * 1e9)


@dataclass
class Tally:
    num_requests: int = 0
    num_failed: int = 0
    num_attempts: int = 0
    wait_seconds: float = 0.0
    num_waits: int = 0

    @property
    def mean_wait(self) -> float:
        return self.wait_seconds / max(self.num_waits, 1)


class Faults:
    def __init__(self) -> None:
        with TRACE.open() as file:
            self._rows = [
                (float(r["start_s"]), float(r["end_s"]), float(r["share"]), int(r["status"]),
                 int(r["retry_after_s"]))
                for r in csv.DictReader(file)
            ]  # fmt: skip

    def at(self, now: float, rng: random.Random) -> tuple[int, int] | None:
        """Status (0: no connection) and Retry-After of an attempt that fails now."""
        for start, end, share, status, retry_after in self._rows:
            if start <= now < end and rng.random() < share:
                return status, retry_after
        return (500, 0) if rng.random() < BACKGROUND else None


class SimulatedClient:
    """Stands in for `UpstreamClient`."""

    def __init__(self, loop: SimulatedLoop, faults: Faults, tally: Tally) -> None:
        self._loop, self._faults, self._tally = loop, faults, tally
        self.rngs: dict[str, random.Random] = {}
        self.ended: dict[str, float] = {}

    async def send(self, upstream: Upstream, request: OutgoingRequest, *_: object) -> OpenAnswer:
        name = request.path_and_query
        self._tally.num_attempts += 1
        if name in self.ended:
            self._tally.wait_seconds += self._loop.time() - self.ended[name]
            self._tally.num_waits += 1
        fault = self._faults.at(self._loop.time(), self.rngs[name])
        if fault is None:
            await asyncio.sleep(SERVICE_SECONDS)
            return cast(OpenAnswer, _Answer())
        status, retry_after = fault
        await asyncio.sleep(FAILURE_SECONDS[status])
        self.ended[name] = self._loop.time()
        raise AttemptFailedError(_failure(status, retry_after))


def _failure(status: int, retry_after: int) -> Failure:
    if status == 0:
        return Failure(kind="connect", outcome=Outcome.NOT_EXECUTED, cause="connect")
    return Failure(
        kind="status",
        outcome=status_outcome(status),
        cause=f"status {status}",
        status=status,
        retry_after_ms=1000 * retry_after or None,
        head=Head(status, []),
    )


class _Answer:
    head = Head(200, [])
    is_stream = False

    def __init__(self) -> None:
        self.on_close = lambda: None

    def whole(self) -> bytes:
        return b"{}"

    def close(self) -> None:
        self.on_close()


def arrivals() -> list[float]:
    rng = random.Random(7)
    times, now = [], 0.0
    while (now := now + rng.expovariate(REQUESTS_PER_SECOND)) < DURATION_SECONDS:
        times.append(now)
    return times


def run_fixed() -> Tally:
    loop, faults, tally = SimulatedLoop(), Faults(), Tally()

    async def request(number: int, at: float) -> None:
        await asyncio.sleep(at)
        rng = random.Random(number)
        tally.num_requests += 1
        for attempt in range(4):
            if attempt:
                await asyncio.sleep(5)
                tally.wait_seconds += 5
                tally.num_waits += 1
            tally.num_attempts += 1
            fault = faults.at(loop.time(), rng)
            if fault is None:
                return
            await asyncio.sleep(FAILURE_SECONDS[fault[0]])
        tally.num_failed += 1

    _run(loop, request)
    return tally


def run_gateway(retry: dict[str, Any] | None = None) -> Tally:
    loop, faults, tally = SimulatedLoop(), Faults(), Tally()
    client = SimulatedClient(loop, faults, tally)
    parts = _parts(loop, client, retry or {})
    route = parts.policy.routes[-1]

    async def request(number: int, at: float) -> None:
        await asyncio.sleep(at)
        name = f"/{number}"
        client.rngs[name] = random.Random(number)
        tally.num_requests += 1
        parts.budgets[route.name].deposit()
        assignment = Assignment(
            route=route,
            request=OutgoingRequest("POST", name, [], b""),
            key=name,
            deadline_ns=parts.clock.now_ns() + route.retry.deadline_ms * 1_000_000,
            may_repeat=True,
        )
        execution = Execution("")
        leader = Leader(parts, assignment, execution, NoRecorder(), NoRequestSpan())
        await leader.run(parts.router.choose((URL,)))
        tally.num_failed += execution.state is not State.SUCCEEDED

    _run(loop, request)
    return tally


def _run(loop: SimulatedLoop, request: Any) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, at in enumerate(arrivals()):
                tasks.create_task(request(number, at))

    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


def _parts(loop: SimulatedLoop, client: Any, retry: dict[str, Any]) -> Parts:
    clock, rng = LoopClock(loop), random.Random(3)
    policy = build_policy({"retry": retry}, (URL,), "benchmark")
    upstream = Upstream(policy.upstreams[0], clock, rng.uniform)
    upstream.is_healthy = True
    metrics = GatewayMetrics(CollectorRegistry())
    store = cast(Any, None)
    values = policy.routes[-1].retry
    budget = RetryBudget(values.budget_percent, values.min_retries_per_second, clock)
    return Parts(
        options=GatewayOptions(upstream=(URL,)),
        policy=policy,
        store=store,
        sealer=PlainSealer(),
        router=Router([upstream], rng),
        client=client,
        keeper=LeaseKeeper(store, 1000, clock, metrics),
        budgets={policy.routes[-1].name: budget},
        notices=DeadLetterNotices(client, None),
        metrics=metrics,
        tracing=cast(Any, None),
        clock=clock,
        rng=rng,
    )


def compare(retry: dict[str, Any] | None = None) -> bool:
    """Prints both; True if the gateway's policy holds its bars."""
    fixed, gateway = run_fixed(), run_gateway(retry)
    print(f"{fixed.num_requests} requests in {DURATION_SECONDS} s")
    for name, one in (("fixed 5 s x 3", fixed), ("gateway", gateway)):
        print(
            f"{name:14} failed {one.num_failed:5}  mean retry delay {one.mean_wait:5.2f} s  "
            f"attempts {one.num_attempts}"
        )
    failures = gateway.num_failed / fixed.num_failed - 1
    delay = gateway.mean_wait / fixed.mean_wait - 1
    attempts = gateway.num_attempts / fixed.num_attempts
    print(
        f"failures {failures:+.0%} (bar -62 %), mean retry delay {delay:+.0%} (bar -70 %), "
        f"attempts {attempts:.2f}x (bar 1.2x)"
    )
    return failures <= -0.62 and delay <= -0.70 and attempts <= 1.2
