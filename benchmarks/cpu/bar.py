"""A bar: what was measured, what was asked for, and whether it holds."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field


class Verdict(enum.Enum):
    GOAL = "goal met"
    MET = "met"
    MISSED = "missed"
    NOT_BUILT = "not built"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number against its bar; it holds if it is at most `bar` (at least, if `is_floor`)."""

    name: str
    value: float
    unit: str
    bar: float
    goal: float | None = None
    is_floor: bool = False

    @property
    def verdict(self) -> Verdict:
        if self.goal is not None and self._holds(self.goal):
            return Verdict.GOAL
        return Verdict.MET if self._holds(self.bar) else Verdict.MISSED

    def _holds(self, bound: float) -> bool:
        return self.value >= bound if self.is_floor else self.value <= bound


@dataclass(frozen=True, slots=True)
class BarResult:
    """The figures of one bar, what they rest on, or why there are none."""

    figures: list[Figure] = field(default_factory=list)
    details: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: Verdict | None = None

    @classmethod
    def not_built(cls, why: str) -> BarResult:
        return cls(notes=[why], missing=Verdict.NOT_BUILT)

    @classmethod
    def not_measured(cls, why: str) -> BarResult:
        return cls(notes=[why], missing=Verdict.NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """What every bar's function is given."""

    model: str
    is_quick: bool
    """Few samples: to see that a bar runs, not to judge it."""
    peers_results: str
    """Where `python -m benchmarks.peers` leaves its results."""

    def scaled(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class Bar:
    title: str
    measure: Callable[[BenchSetting], BarResult]
