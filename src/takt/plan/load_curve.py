"""Estimated P99s of one topology over the load, up to where it gives way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from takt.plan.load_estimate import StepLimits, estimate_load
from takt.plan.search import Plan
from takt.plan.step_cost import StepCost
from takt.plan.verdict import Assessment, Latencies

_NUM_POINTS = 40
_DEFAULT_LIMITS = StepLimits(256, 256)
_MOST_RATE = 1e6


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Latencies are P99s in seconds, by requests per second of the whole cluster, ascending."""

    assessment: Assessment
    rates_per_s: tuple[float, ...]
    latencies: tuple[Latencies, ...]


def load_curve(plan: Plan) -> LoadCurve:
    """The best topology's, with the limits it was planned with."""
    assessment = next((a for a in plan.assessments if a.limits is not None), plan.best)
    limits = assessment.limits or _DEFAULT_LIMITS
    cost = StepCost(plan.model, plan.cluster.accelerator, assessment.topology, assessment.precision)

    def at(rate: float) -> Latencies:
        workload = replace(plan.workload, requests_per_s=rate)
        load = estimate_load(cost, assessment.memory, workload, assessment.topology.dp, limits)
        return Latencies(load.itl_p99_s, load.ttft_p99_s, load.e2e_p99_s)

    top = _highest_stable_rate(at)
    rates = [top * (i + 1) / _NUM_POINTS for i in range(_NUM_POINTS)]
    points = [(rate, at(rate)) for rate in rates] if top > 0 else []
    points = [(rate, p99) for rate, p99 in points if math.isfinite(p99.e2e_s)]
    return LoadCurve(assessment, tuple(r for r, _ in points), tuple(p for _, p in points))


def _highest_stable_rate(at: Callable[[float], Latencies]) -> float:
    low, high = 0.0, 1e-3
    while high < _MOST_RATE and math.isfinite(at(high).e2e_s):
        low, high = high, 2 * high
    while low > 0 and high - low > 0.005 * high:
        middle = (low + high) / 2
        if math.isfinite(at(middle).e2e_s):
            low = middle
        else:
            high = middle
    return low
