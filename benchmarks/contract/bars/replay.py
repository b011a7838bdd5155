"""The simulator on the real server's own arrivals, at 85 % of the capacity."""

from __future__ import annotations

import numpy as np
from benchmarks.contract.mix import LONG_EVERY_S
from benchmarks.contract.session import Session, serve, simulated
from benchmarks.contract.steps import fitted
from benchmarks.cpu.bar import BarResult, Figure
from benchmarks.percentile import percentile

from takt.scheduler.slo import SLO

LEAST_REQUESTS = 1000
MARGIN = 10.0


def measure(session: Session) -> BarResult:
    """Steps come from a model of this run's first half; residuals are drawn one by one."""
    rate = 0.85 * (session.capacity + 1 / LONG_EVERY_S)
    seconds = session.seconds(1.1 * LEAST_REQUESTS / rate, 20.0)
    planned = session.mix(0.85, seconds, seed=7).arrivals()
    served = serve(session.model, session.pace_arguments, planned)
    outcome = served.outcome
    # When they were really sent, on the same clock.
    sent = {r.index: r.sent_ns - outcome.start_ns for r in served.run.records}
    arrivals = [a._replace(time_ns=max(sent[i], 0)) for i, a in enumerate(planned)]
    arrivals.sort(key=lambda arrival: arrival.time_ns)
    half = {name: column[: len(column) // 2] for name, column in served.steps.items()}
    slo = SLO.from_ms(session.targets.itl_ms, session.targets.ttft_ms)
    result = simulated(fitted(half), arrivals, policy="pace", slo=slo, warm_up_share=0.0)
    _, gaps_ms = outcome.gaps()
    ttft_ms = np.array([t.ttft_ms for t in outcome.times])
    figures, details = [], {}
    for percent in (50, 99):
        for name, real, found in (
            ("TTFT", percentile(ttft_ms, percent), result.ttft_quantile_s(percent / 100) * 1e3),
            ("ITL", percentile(gaps_ms, percent), result.itl_quantile_s(percent / 100) * 1e3),
        ):
            off = 100 * abs(found / real - 1)
            figures.append(Figure(f"{name} P{percent}, difference", off, "%", MARGIN))
            details[f"{name} P{percent} real ms"] = real
            details[f"{name} P{percent} simulated ms"] = found
    figures.append(Figure("requests", float(len(planned)), "", LEAST_REQUESTS, is_floor=True))
    return BarResult(figures, details)
