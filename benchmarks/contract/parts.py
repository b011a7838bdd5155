"""The benchmark's parts, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.contract.bars import (
    causes,
    goodput,
    mixed_load,
    overload,
    prediction,
    replay,
    scheduler_cost,
)
from benchmarks.contract.cost import Run, shared
from benchmarks.contract.session import Session
from benchmarks.cpu.bar import BarResult


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    measure: Callable[[Session], BarResult]
    own_runs: Callable[[Session], list[Run]]
    needs: tuple[str, ...] = ()
    """What it shares with others, by its name in the session."""

    def runs(self, session: Session) -> list[Run]:
        """What is to be run for it, from now on."""
        return shared(session, self.needs) + self.own_runs(session)


_MIXED = ("alone", "first", "capacity", "mixed")

PARTS = {
    "causes": Part("causes of late gaps", causes.measure, causes.runs),
    "scheduler": Part(
        "schedule and update at 256 running", scheduler_cost.measure, scheduler_cost.runs
    ),
    "prediction": Part(
        "step-time prediction, 70 % of capacity", prediction.measure, prediction.runs, _MIXED
    ),
    "mixed": Part("mixed load at 70 % of capacity", mixed_load.measure, mixed_load.runs, _MIXED),
    "goodput": Part("goodput at the same P99", goodput.measure, goodput.runs, _MIXED),
    "overload": Part("1.5 x capacity, refuse", overload.measure, overload.runs, _MIXED[:3]),
    "replay": Part(
        "simulator on the server's arrivals, 85 %", replay.measure, replay.runs, _MIXED[:2]
    ),
}
