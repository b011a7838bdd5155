"""Half as much again as the capacity, with --admission refuse."""

from __future__ import annotations

from benchmarks.contract.cost import Run
from benchmarks.contract.outcome import refusal_ms
from benchmarks.contract.session import Served, Session, serve
from benchmarks.cpu.bar import BarResult, Figure
from benchmarks.percentile import percentile

OVERLOAD_S = 150.0


def measure(session: Session) -> BarResult:
    run_s, warm_up_s = session.seconds(OVERLOAD_S, 15.0), session.seconds(20.0, 2.0)
    arguments = [*session.pace_arguments, "--admission", "refuse"]
    over_mix, at_mix = session.mix(1.5, run_s, seed=5), session.mix(1.0, run_s, seed=5)
    over = serve(session.model, arguments, over_mix.arrivals())
    at = serve(session.model, arguments, at_mix.arrivals())
    met = over.outcome.num_met(session.targets)
    num_served, num_refused = len(over.outcome.times), len(over.outcome.refused)
    lost = len(over_mix.arrivals()) - num_served - num_refused
    good_over, good_at = (_goodput(one, session, run_s, warm_up_s) for one in (over, at))
    figures = [
        Figure("admitted that met both targets", 100 * met / num_served, "%", 95.0, is_floor=True),
        Figure("goodput / that at capacity", good_over / good_at, "x", 0.9, is_floor=True),
        Figure("lost", float(lost), "", 0.0),
        Figure("preempted", float(over.steps["num_preempted"].sum()), "", 0.0),
    ]
    if num_refused:
        took_ms = refusal_ms(over.outcome.refused)
        figures.append(Figure("P99 of a refusal", percentile(took_ms, 99), "ms", 20.0))
    details = {
        "served": float(num_served),
        "refused": float(num_refused),
        "refused at capacity": float(len(at.outcome.refused)),
        "goodput per s": good_over,
        "goodput at capacity per s": good_at,
        **session.speed(over),
    }
    return BarResult(figures, details)


def runs(session: Session) -> list[Run]:
    run_s = session.seconds(OVERLOAD_S, 15.0)
    return [Run("pace at 150 %, refusing", run_s), Run("pace at 100 %, refusing", run_s)]


def _goodput(served: Served, session: Session, run_s: float, warm_up_s: float) -> float:
    return served.outcome.num_met(session.targets, warm_up_s) / (run_s - warm_up_s)
