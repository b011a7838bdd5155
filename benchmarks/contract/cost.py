"""What the parts of the benchmark take, told before they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.contract.capacity import CAPACITY_S
from benchmarks.contract.session import FIRST_S, MIXED_S, Session

SERVER_S = 6.0
"""To start a server and to end it, and from the load's end to its last answer."""

_LIKELY_RUNS = 2.5
"""Of the search for the capacity."""


class Run(NamedTuple):
    """One load or computation."""

    name: str
    seconds: float


def shared(session: Session, needs: Iterable[str]) -> list[Run]:
    """What parts have in common and is not measured yet, by its name in the session."""
    searched_s = 0.0 if session.is_quick else _LIKELY_RUNS * (CAPACITY_S + SERVER_S)
    runs = {
        "alone": Run("requests alone", session.seconds(40.0, 25.0)),
        "first": Run("the first run of the mix", session.seconds(FIRST_S, 15.0)),
        "capacity": Run("search for the capacity", searched_s),
        "mixed": Run("pace at 70 %", session.seconds(MIXED_S, 20.0)),
    }
    known = set(session.__dict__)
    if session.given_capacity is not None:
        known.add("capacity")
    return [run for name, run in runs.items() if name in needs and name not in known]


def total_s(runs: Sequence[Run]) -> float:
    return sum(run.seconds + SERVER_S for run in runs)


def sentence(runs: Sequence[Run]) -> str:
    listed = ", ".join(f"{run.name} {run.seconds:.0f} s" for run in runs)
    return f"about {total_s(runs) / 60:.1f} min" + (f": {listed}" if listed else "")
