"""The simulator on the real server's own arrivals: the fixed budget and pace, each at 85 % of what
it carries itself.

Of the contract's mix with a quarter of its lengths, so that a thousand requests take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.contract.cost import Run
from benchmarks.contract.mix import LONG_EVERY_S, Mix
from benchmarks.contract.session import FIXED_ARGUMENTS, Served, Session, serve, simulated
from benchmarks.contract.steps import fitted, learned, periods_ns
from benchmarks.cpu.bar import BarResult, Figure
from benchmarks.percentile import percentile

from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.recorded_load import RecordedLoad
from takt.plan.simulate.result import SimulationResult
from takt.scheduler.slo import NO_SLO, SLO

LOAD = 0.85
SCALE = 4
LEAST_REQUESTS = 1000
MARGIN = 10.0
SEEDS = 5
"""Simulations that differ in the residuals that are drawn; their median counts."""
_LIKELY_RATE = 8.0
"""Requests per second of the scaled mix, before the capacity is known."""

SOURCE = (
    "simulated with steps of the run: each stretch's residuals and speed are judged by a model of "
    "the other half"
)


@dataclass(frozen=True, slots=True)
class _Policy:
    name: str
    arguments: Sequence[str]
    slo: SLO

    def simulated(self, load: RecordedLoad, arrivals: list[Arrival], seed: int) -> SimulationResult:
        return simulated(
            load.steps,
            arrivals,
            policy=self.name,
            slo=self.slo,
            warm_up_share=0.0,
            seed=seed,
            speed=load.speed,
        )


def measure(session: Session) -> BarResult:
    """Model, residuals and speed come from the run, one half judged by the other: see `learned`."""
    figures: list[Figure] = []
    details: dict[str, float] = {}
    slo = SLO.from_ms(session.targets.itl_ms, session.targets.ttft_ms)
    for policy in (
        _Policy("fcfs", FIXED_ARGUMENTS, NO_SLO),
        _Policy("pace", session.pace_arguments, slo),
    ):
        found, more = _replay(session, policy)
        figures += found
        details |= {f"{policy.name}: {name}": value for name, value in more.items()}
    return BarResult(figures, details, [SOURCE])


def runs(session: Session) -> list[Run]:
    run_s = session.seconds(1.05 * LEAST_REQUESTS / _LIKELY_RATE, 20.0)
    simulations_s = session.seconds(60.0, 10.0)
    return [
        Run(name, seconds)
        for policy in ("fcfs", "pace")
        for name, seconds in (
            (f"{policy} at 85 %", run_s),
            (f"simulations of {policy}", simulations_s),
        )
    ]


def _replay(session: Session, policy: _Policy) -> tuple[list[Figure], dict[str, float]]:
    """One run of the server, and simulations of it."""
    rate = session.simulated_capacity(session.first_steps, SCALE, policy.name, policy.slo)
    per_s = SCALE * LOAD * (rate + 1 / LONG_EVERY_S)
    run_s = session.seconds(1.05 * LEAST_REQUESTS / per_s, 20.0)
    long_ttft_ms = session.targets.long_ttft_ms
    planned = Mix(rate, run_s, 7, long_ttft_ms, LOAD, SCALE).arrivals()
    print(f"  {policy.name}: {len(planned)} requests in {run_s:.0f} s", flush=True)
    served = serve(session.model, policy.arguments, planned, keeps_targets=policy.slo.is_given)
    outcome = served.outcome
    # When they were really sent, on the same clock.
    sent = {r.index: r.sent_ns - outcome.start_ns for r in served.run.records}
    arrivals = [a._replace(time_ns=max(sent[i], 0)) for i, a in enumerate(planned)]
    arrivals.sort(key=lambda arrival: arrival.time_ns)
    load = learned(served.steps, outcome.start_ns)
    results = [policy.simulated(load, arrivals, seed) for seed in range(1, SEEDS + 1)]
    _, gaps_ms = outcome.gaps()
    ttft_ms = np.array([t.ttft_ms for t in outcome.times])
    figures, details = [], {"short requests per s": SCALE * LOAD * rate}
    for percent in (50, 99):
        share = percent / 100
        for name, real, found_s in (
            ("TTFT", percentile(ttft_ms, percent), [r.ttft_quantile_s(share) for r in results]),
            ("ITL", percentile(gaps_ms, percent), [r.itl_quantile_s(share) for r in results]),
        ):
            found = 1e3 * float(np.median(found_s))
            off = 100 * abs(found / real - 1)
            figures.append(
                Figure(f"{policy.name}: {name} P{percent}, difference", off, "%", MARGIN)
            )
            details[f"{name} P{percent} real ms"] = real
            details[f"{name} P{percent} simulated ms"] = found
    num_requests = float(len(planned))
    figures.append(
        Figure(f"{policy.name}: requests", num_requests, "", LEAST_REQUESTS, is_floor=True)
    )
    details |= _by_first_half(served, arrivals, policy) | _left_out(served, load)
    return figures, details | session.speed(served)


def _by_first_half(served: Served, arrivals: list[Arrival], policy: _Policy) -> dict[str, float]:
    """Beside it: with the steps of the first half alone, whatever the machine did in the second."""
    half = {name: column[: len(column) // 2] for name, column in served.steps.items()}
    result = simulated(
        fitted(half), arrivals, policy=policy.name, slo=policy.slo, warm_up_share=0.0
    )
    return {
        "by the first half: TTFT P99 ms": result.ttft_quantile_s(0.99) * 1e3,
        "by the first half: ITL P99 ms": result.itl_quantile_s(0.99) * 1e3,
    }


def _left_out(served: Served, load: RecordedLoad) -> dict[str, float]:
    """What the simulator does not model, as far as the run tells."""
    steps, outcome = served.steps, served.outcome
    ends_ns = steps["update_end_ns"]
    stamps_ns = np.array([t.tokens.stamps_ns[0] for t in outcome.times])
    places = np.searchsorted(ends_ns, stamps_ns, side="right") - 1
    ways_ms = (stamps_ns - ends_ns[places])[places >= 0] / 1e6
    lateness_ms = [(r.sent_ns - r.planned_ns) / 1e6 for r in served.run.records]
    num_prompt = sum(t.num_prompt_tokens for t in outcome.times)
    decodes = steps["num_decode_seqs"]
    gaps_ms = np.repeat(periods_ns(steps) / 1e6, decodes)
    return {
        "ITL P99 between ends of steps, ms": percentile(gaps_ms, 99),
        "a first token's way to the client P99, ms": percentile(ways_ms, 99),
        "client later than planned P99, ms": percentile(lateness_ms, 99),
        "prompt tokens computed / sent": float(steps["num_prefill_tokens"].sum() / num_prompt),
        "correlation of neighbours' residuals": load.autocorrelation,
        "machine's speed, slowest / fastest stretch": max(load.speed.factors)
        / min(load.speed.factors),
    }
