"""The contract at 70 % of the capacity, beside fixed budgets on the same trace."""

from __future__ import annotations

from benchmarks.contract.cost import Run
from benchmarks.contract.outcome import Outcome
from benchmarks.contract.session import BESIDE_S, BUDGETS, LONG_FACTOR, Session
from benchmarks.cpu.bar import BarResult, Figure
from benchmarks.percentile import percentile

WINDOW_S = 30.0
WARM_UP_S = 20.0
LEAST_WINDOWS = 20


def measure(session: Session) -> BarResult:
    targets = session.targets
    window_s, warm_up_s = session.seconds(WINDOW_S, 5.0), session.seconds(WARM_UP_S, 5.0)
    outcome, steps = session.mixed.outcome, session.mixed.steps
    windows = outcome.p99_by_window_ms(window_s, warm_up_s)
    if not len(windows):
        return BarResult.not_measured("no window had a gap: the machine is too slow for this run")
    long_ms = outcome.ttft_ms(is_long=True)
    figures = [
        Figure("largest P99 ITL of a window", float(windows.max()), "ms", targets.itl_ms),
        Figure("windows", float(len(windows)), "", LEAST_WINDOWS, is_floor=True),
        Figure(
            "TTFT P99, short", percentile(outcome.ttft_ms(is_long=False), 99), "ms", targets.ttft_ms
        ),
        Figure("TTFT, long, largest", float(long_ms.max()), "ms", targets.long_ttft_ms),
        Figure("refused", float(len(outcome.refused)), "", 0.0),
        Figure("preempted", float(steps["num_preempted"].sum()), "", 0.0),
    ]
    details = {
        "rate per s": 0.7 * session.capacity,
        "long alone ms": targets.long_ttft_ms / LONG_FACTOR,
        "TTFT P50, short ms": percentile(outcome.ttft_ms(is_long=False), 50),
        **session.speed(session.mixed),
    }
    for name, fixed in session.beside.items():
        details |= _beside(name, fixed.outcome, window_s, warm_up_s)
    return BarResult(figures, details)


def runs(session: Session) -> list[Run]:
    run_s = session.seconds(BESIDE_S, 15.0)
    return [Run(f"fcfs {budget} on the same trace", run_s) for budget in BUDGETS]


def _beside(name: str, outcome: Outcome, window_s: float, warm_up_s: float) -> dict[str, float]:
    windows = outcome.p99_by_window_ms(window_s, warm_up_s)
    return {
        f"{name}: P99 ITL, best window ms": float(windows.min()),
        f"{name}: P99 ITL, worst window ms": float(windows.max()),
        f"{name}: TTFT P99, short ms": percentile(outcome.ttft_ms(is_long=False), 99),
        f"{name}: TTFT P50, long ms": percentile(outcome.ttft_ms(is_long=True), 50),
    }
