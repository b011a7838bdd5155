"""The highest rate that holds the targets, for pace and for the best fixed budget.

Searched by simulation with the model of the real server's steps, then run on the real server. Where
no fixed budget holds them at any rate the ratio is infinite; then the smallest budget, whose gaps
are the shortest, runs beside pace at its rate.
"""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from benchmarks.contract.cost import Run
from benchmarks.contract.mix import Mix
from benchmarks.contract.outcome import Outcome, Targets
from benchmarks.contract.session import MAX_NUM_SEQS, Session, serve, simulated
from benchmarks.contract.steps import fitted
from benchmarks.cpu.bar import BarResult, Figure
from benchmarks.percentile import percentile

from takt.plan.simulate.measured_steps import MeasuredSteps
from takt.plan.simulate.result import SimulationResult
from takt.scheduler.slo import SLO

BUDGETS = (8, 12, 16, 20, 24, 32, 48, 64, 128, 512)
REAL_S = 75.0
_PRECISION = 1.03


def measure(session: Session) -> BarResult:
    model, targets = fitted(session.mixed.steps), session.targets
    simulated_s = session.seconds(240.0, 30.0)
    budgets: tuple[int | None, ...] = (None, *(BUDGETS if not session.is_quick else (12, 24, 64)))
    search = partial(highest_rate, model, targets, simulated_s)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(budgets, pool.map(search, budgets), strict=True))
    pace = found[None]
    rates = {budget: rate for budget, rate in found.items() if budget is not None}
    best = max(rates, key=rates.__getitem__)
    ratio = pace / rates[best] if rates[best] > 0 else math.inf if pace > 0 else 0.0
    figures = [Figure("simulated, pace / best fixed", ratio, "x", 1.3, is_floor=True)]
    details = {f"budget {budget}: rate per s": rate for budget, rate in rates.items()}
    details["pace: rate per s"] = pace
    run_s = session.seconds(REAL_S, 15.0)
    served = serve(session.model, session.pace_arguments, _mix(pace, run_s, targets).arrivals())
    details |= _measured("pace, real", served.outcome)
    budget, rate = (best, rates[best]) if rates[best] > 0 else (min(rates), pace)
    fixed = [
        "--scheduling-policy", "fcfs", "--max-num-batched-tokens", str(budget),
        "--max-num-seqs", str(min(budget, MAX_NUM_SEQS)),
    ]  # fmt: skip
    arrivals = _mix(rate, run_s, targets).arrivals()
    beside = serve(session.model, fixed, arrivals, keeps_targets=False)
    details |= _measured(f"budget {budget} at {rate:.2f} per s, real", beside.outcome)
    return BarResult(figures, details)


def runs(session: Session) -> list[Run]:
    run_s = session.seconds(REAL_S, 15.0)
    return [
        Run("simulations", session.seconds(90.0, 20.0)),
        Run("pace at its highest rate", run_s),
        Run("the best fixed budget at its own", run_s),
    ]


def highest_rate(
    model: MeasuredSteps, targets: Targets, seconds: float, budget: int | None
) -> float:
    """Requests per second with P99s of ITL and TTFT within the targets; pace without a budget."""
    low, high = 0.0, 0.5
    while high < 50 and _holds(model, targets, high, seconds, budget):
        low, high = high, 2 * high
    while low < 0.05 < high or (low > 0 and high / low > _PRECISION):
        rate = (low + high) / 2
        if _holds(model, targets, rate, seconds, budget):
            low = rate
        else:
            high = rate
        if high <= 0.05:
            break
    return low


def _holds(
    model: MeasuredSteps, targets: Targets, rate: float, seconds: float, budget: int | None
) -> bool:
    arrivals = _mix(rate, seconds, targets).arrivals()
    if budget is None:
        slo = SLO.from_ms(targets.itl_ms, targets.ttft_ms)
        result = simulated(model, arrivals, policy="pace", slo=slo)
    else:
        seqs = min(budget, MAX_NUM_SEQS)
        result = simulated(model, arrivals, budget=budget, max_num_seqs=seqs)
    is_long = np.array([arrivals[i].slo.ttft_ns is not None for i in result.served])
    return within(result, is_long, targets)


def within(
    result: SimulationResult, is_long: np.ndarray[tuple[int], np.dtype[np.bool_]], targets: Targets
) -> bool:
    """P99 of gaps and of short TTFTs within the targets, and no long one later than its own."""
    ttft_ms = result.ttft_s * 1e3
    return bool(
        result.itl_quantile_s(0.99) * 1e3 <= targets.itl_ms
        and (is_long.all() or percentile(ttft_ms[~is_long], 99) <= targets.ttft_ms)
        and (not is_long.any() or ttft_ms[is_long].max() <= targets.long_ttft_ms)
    )


def _mix(rate: float, seconds: float, targets: Targets) -> Mix:
    return Mix(max(rate, 0.05), seconds, 3, targets.long_ttft_ms)


def _measured(name: str, outcome: Outcome) -> dict[str, float]:
    _, gaps_ms = outcome.gaps()
    return {
        f"{name}: P99 ITL ms": percentile(gaps_ms, 99),
        f"{name}: TTFT P99, short ms": percentile(outcome.ttft_ms(is_long=False), 99),
    }
