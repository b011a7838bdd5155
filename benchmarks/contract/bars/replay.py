"""The simulator on the real server's own arrivals, at 85 % of the capacity.

Of the contract's mix with a quarter of its lengths, so that a thousand requests take minutes.
"""

from __future__ import annotations

import numpy as np
from benchmarks.contract.cost import Run
from benchmarks.contract.mix import LONG_EVERY_S, Mix
from benchmarks.contract.session import Served, Session, serve, simulated
from benchmarks.contract.steps import fitted, learned, periods_ns
from benchmarks.cpu.bar import BarResult, Figure
from benchmarks.percentile import percentile

from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.recorded_load import RecordedLoad
from takt.plan.simulate.result import SimulationResult
from takt.scheduler.slo import SLO

LOAD = 0.85
SCALE = 4
LEAST_REQUESTS = 1000
MARGIN = 10.0
SEEDS = 5
"""Simulations that differ in the residuals that are drawn; their median counts."""
_LIKELY_RATE = 4.0
"""Requests per second of the scaled mix, before the capacity is known."""


def measure(session: Session) -> BarResult:
    """Model, residuals and speed come from the run, one half judged by the other: see `learned`."""
    rate = session.simulated_capacity(session.first_steps, SCALE)
    per_s = SCALE * LOAD * (rate + 1 / LONG_EVERY_S)
    run_s = session.seconds(1.05 * LEAST_REQUESTS / per_s, 20.0)
    targets = session.targets
    mix = Mix(rate, run_s, seed=7, long_ttft_ms=targets.long_ttft_ms, share=LOAD, scale=SCALE)
    planned = mix.arrivals()
    print(f"  {len(planned)} requests in {run_s:.0f} s", flush=True)
    served = serve(session.model, session.pace_arguments, planned)
    outcome = served.outcome
    # When they were really sent, on the same clock.
    sent = {r.index: r.sent_ns - outcome.start_ns for r in served.run.records}
    arrivals = [a._replace(time_ns=max(sent[i], 0)) for i, a in enumerate(planned)]
    arrivals.sort(key=lambda arrival: arrival.time_ns)
    slo = SLO.from_ms(targets.itl_ms, targets.ttft_ms)
    load = learned(served.steps, outcome.start_ns)
    results = [_simulated(load, arrivals, slo, seed) for seed in range(1, SEEDS + 1)]
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
            figures.append(Figure(f"{name} P{percent}, difference", off, "%", MARGIN))
            details[f"{name} P{percent} real ms"] = real
            details[f"{name} P{percent} simulated ms"] = found
    figures.append(Figure("requests", float(len(planned)), "", LEAST_REQUESTS, is_floor=True))
    details |= _by_first_half(served, arrivals, slo) | _left_out(served, load)
    return BarResult(figures, details | session.speed(served), [SOURCE])


SOURCE = (
    "simulated with steps of the run: each stretch's residuals and speed are judged by a model of "
    "the other half"
)


def runs(session: Session) -> list[Run]:
    per_s = _LIKELY_RATE
    if "capacity" in session.__dict__:
        per_s = SCALE * LOAD * (session.capacity + 1 / LONG_EVERY_S)
    run_s = session.seconds(1.05 * LEAST_REQUESTS / per_s, 20.0)
    return [Run("pace at 85 %", run_s), Run("simulations", session.seconds(40.0, 10.0))]


def _simulated(
    load: RecordedLoad, arrivals: list[Arrival], slo: SLO, seed: int
) -> SimulationResult:
    return simulated(
        load.steps,
        arrivals,
        policy="pace",
        slo=slo,
        warm_up_share=0.0,
        seed=seed,
        speed=load.speed,
    )


def _by_first_half(served: Served, arrivals: list[Arrival], slo: SLO) -> dict[str, float]:
    """Beside it: with the steps of the first half alone, whatever the machine did in the second."""
    half = {name: column[: len(column) // 2] for name, column in served.steps.items()}
    result = simulated(fitted(half), arrivals, policy="pace", slo=slo, warm_up_share=0.0)
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
