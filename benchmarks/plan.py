"""The planner against its bars: `make bench-plan`, or `python benchmarks/plan.py [SECTION ...]`.

Sections are steps, queues, speed, simulator, cases and measured; all without an argument. `--cases
N` (500) is the number of random ones. `measured` starts a server here and needs the machine for
itself. `--quick` only shows that all of it runs. Ends with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import heapq
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from plan_fuzz import run_case
from plan_measured import verify_here
from rich.console import Console
from rich.table import Table

from takt.plan.hardware import parse_cluster
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.published import fit_other_kernels_s, published_steps
from takt.plan.queueing.mg1 import MG1
from takt.plan.queueing.mgc import MGc
from takt.plan.queueing.service import TruncatedLogNormal
from takt.plan.search import PlanRequest, make_plan
from takt.plan.simulate.arrivals import LengthDistribution, poisson_arrivals
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.plan.workload import Targets, Workload
from takt.scheduler.step_time import StepCoefficients, StepTimeModel

STEP_BAR = 0.20
MG1_BAR, MGC_BAR = 0.03, 0.10
PLAN_BAR_S = 5.0
SIMULATOR_BAR = 100_000
SHOULD_HOLD_BAR = 0.90
MEASURED_BAR = 0.10
QUICK_CASES = 6


@dataclass(frozen=True, slots=True)
class Setting:
    num_cases: int
    is_quick: bool
    model: str


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    figure: str
    bar: str
    is_met: bool


def steps(_setting: Setting) -> list[Row]:
    """Published decode steps that no constant was fitted on, one by one."""
    rows = []
    for published in published_steps("judged"):
        error = published.error()
        figure = f"{published.predicted_s() * 1e3:.2f} ms, {error:+.0%}"
        what = f"{published.label}: {published.time_s * 1e3:g} ms"
        rows.append(Row(what, figure, f"within {STEP_BAR:.0%}", abs(error) <= STEP_BAR))
    fitted = fit_other_kernels_s(published_steps("fitted")) * 1e6
    rows.append(Row("constant per layer, refitted", f"{fitted:.2f} us", "-", True))
    return rows


def queues(_setting: Setting) -> list[Row]:
    """P99 of the wait against simulations of queues, by load and squared variation."""
    rows = []
    for variation in (0.28, 1.39):
        service = TruncatedLogNormal.from_mean(1.0, variation)
        for load in (0.5, 0.6, 0.7, 0.8, 0.9):
            measured = _simulated_wait_p99(service, load, 1, 6_000_000)
            found = MG1(load / service.moment(1), service).wait_quantile_s(0.99)
            rows.append(_queue_row(f"M/G/1, load {load}, {variation}", found, measured, MG1_BAR))
        for servers in (2, 4):
            for load in (0.7, 0.85):
                measured = _simulated_wait_p99(service, load, servers, 600_000)
                rate = servers * load / service.moment(1)
                found = MGc(rate, service, servers).wait_quantile_s(0.99)
                what = f"M/G/{servers}, load {load}, {variation}"
                rows.append(_queue_row(what, found, measured, MGC_BAR))
    return rows


def speed(_setting: Setting) -> list[Row]:
    """All topologies of 16 devices, answers of every kind."""
    rows = []
    for model, hardware, qps, itl_ms in (
        ("llama-3-70b", "16xA100-80G", 8.0, 3.7),
        ("llama-3-70b", "16xA100-80G", 8.0, 40.0),
        ("llama-3-8b", "16xH200", 40.0, 5.0),
        ("qwen3-1.7b", "16xH200", 900.0, 3.7),
    ):
        request = PlanRequest(
            find_model(model),
            parse_cluster(hardware),
            parse_precision("fp16"),
            Workload(512, 128, qps),
            Targets(itl_s=itl_ms / 1e3),
        )
        start, cpu = time.perf_counter(), time.process_time()
        verdict = make_plan(request).verdict.value
        taken = time.perf_counter() - start
        figure = f"{taken:.1f} s, {time.process_time() - cpu:.1f} s of CPU"
        what = f"{model} on {hardware}, {qps:g}/s, {itl_ms:g} ms: {verdict}"
        rows.append(Row(what, figure, f"< {PLAN_BAR_S:g} s", taken < PLAN_BAR_S))
    return rows


def simulator(_setting: Setting) -> list[Row]:
    """Requests a minute of one core's time, 400 in / 128 out."""
    piece = StepCoefficients(2e6, 2e4, 2e4, 50.0, 5.0)
    server = SimulatedServer(StepTimeModel((piece, piece)), 256, 512, 200_000)
    rows = []
    for rate in (45.0, 56.0):
        arrivals = poisson_arrivals(rate, 6000, LengthDistribution(400), LengthDistribution(128), 1)
        start = time.process_time()
        result = simulate(server, arrivals)
        per_minute = len(arrivals) / (time.process_time() - start) * 60
        rows.append(
            Row(
                f"{result.mean_running:.0f} running on average",
                f"{per_minute:,.0f} requests a minute",
                f">= {SIMULATOR_BAR:,}",
                per_minute >= SIMULATOR_BAR and result.mean_running >= 32,
            )
        )
    return rows


def cases(setting: Setting) -> list[Row]:
    """Random questions, judged by simulations with other steps."""
    count = QUICK_CASES if setting.is_quick else setting.num_cases
    outcomes = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for outcome in pool.map(run_case, range(count)):
            outcomes.append(outcome)
            if outcome.is_false_hold or (outcome.should_hold and outcome.verdict != "HOLD"):
                print(f"wrong: {outcome.label}: {outcome.verdict}", file=sys.stderr, flush=True)
            if len(outcomes) % 25 == 0:
                print(f"cases: {len(outcomes)} of {count}", file=sys.stderr, flush=True)
    held = sum(o.verdict == "HOLD" for o in outcomes)
    false = sum(o.is_false_hold for o in outcomes)
    should = [o for o in outcomes if o.should_hold]
    found = sum(o.verdict == "HOLD" for o in should)
    share = found / len(should) if should else 1.0
    return [
        Row(f"false among {held} HOLDs of {count} cases", str(false), "0", false == 0),
        Row(
            "HOLD where 15 % are spare",
            f"{found} of {len(should)}",
            f">= {SHOULD_HOLD_BAR:.0%}",
            share >= SHOULD_HOLD_BAR,
        ),
    ]


def measured(setting: Setting) -> list[Row]:
    """A server of this machine at 85 % of its capacity, its own arrivals replayed (minutes, which
    it tells)."""
    found = verify_here(setting.model, is_quick=setting.is_quick)
    rows = []
    for row in found.rows:
        figure = (
            f"{row.measured.value:.1f} ms, predicted {row.predicted.value:.1f}, "
            f"{row.difference:+.1%}"
        )
        what = f"P99 {row.name}, {found.num_requests} requests at {found.offered_per_s:.2f}/s"
        is_bar = row.name in ("itl", "ttft")
        bar = f"within {MEASURED_BAR:.0%}" if is_bar else "-"
        rows.append(Row(what, figure, bar, not is_bar or abs(row.difference) <= MEASURED_BAR))
        for other in found.beside:
            beside_ms = other.bands[row.name].value
            figure = f"{beside_ms:.1f} ms, {row.measured.value / beside_ms - 1:+.1%}"
            rows.append(Row(f"P99 {row.name} by {other.source}", figure, "-", True))
    rows.append(Row("predicted from", found.source, "-", True))
    if found.left_out is not None:
        slowdown = f"{found.left_out.slowdown:.2f} x"
        rows.append(Row("steps under load against those before", slowdown, "-", True))
    rows.append(Row("requests that failed", str(found.num_failed), "0", found.num_failed == 0))
    return rows


SECTIONS: dict[str, Callable[[Setting], list[Row]]] = {
    "steps": steps,
    "queues": queues,
    "speed": speed,
    "simulator": simulator,
    "cases": cases,
    "measured": measured,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="few samples: no verdict to rely on")
    parser.add_argument("--model", default="smollm2-135m", help="of the section measured")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}")
    setting = Setting(arguments.cases, arguments.quick, arguments.model)
    console = Console()
    all_met = True
    for name in arguments.sections or list(SECTIONS):
        table = Table("what", "figure", "bar", "verdict", title=name)
        for row in SECTIONS[name](setting):
            table.add_row(row.what, row.figure, row.bar, "met" if row.is_met else "MISSED")
            all_met = all_met and row.is_met
        console.print(table)
    return 0 if all_met else 1


def _queue_row(what: str, found: float, measured: float, bar: float) -> Row:
    error = found / measured - 1
    figure = f"{found:.3f}, simulated {measured:.3f}, {error:+.1%}"
    return Row(what, figure, f"within {bar:.0%}", abs(error) <= bar)


def _simulated_wait_p99(
    service: TruncatedLogNormal, load: float, servers: int, count: int
) -> float:
    rng = np.random.default_rng(7)
    gaps = rng.exponential(service.moment(1) / load / servers, count)
    times = rng.lognormal(service.mu, service.sigma, count)
    while (outside := times > service.high_s).any():
        times[outside] = rng.lognormal(service.mu, service.sigma, int(outside.sum()))
    if servers == 1:
        walk = np.cumsum(np.concatenate([[0.0], times[:-1] - gaps[1:]]))
        waits = walk - np.minimum.accumulate(walk)
    else:
        free, found = [0.0] * servers, []
        for arrival, taken in zip(np.cumsum(gaps).tolist(), times.tolist(), strict=True):
            start = max(arrival, free[0])
            found.append(start - arrival)
            heapq.heapreplace(free, start + taken)
        waits = np.array(found)
    return float(np.quantile(waits[count // 20 :], 0.99))


if __name__ == "__main__":
    raise SystemExit(main())
