"""The answers a plan can give, and the figure that decides."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from takt.plan.bounds import PhysicalBounds
from takt.plan.load_estimate import LoadEstimate, StepLimits
from takt.plan.memory import MemoryFit
from takt.plan.precision import Precision
from takt.plan.topology import Topology
from takt.plan.workload import Targets


class Verdict(enum.Enum):
    """From the hardest no to yes."""

    PHYSICAL_NO = "PHYSICAL_NO"
    """Peaks of memory and arithmetic alone exceed a target, or the weights do not fit."""
    SILICON_NO = "SILICON_NO"
    """One request alone, at what software gets of the device, exceeds a target with its margin."""
    LOAD_NO = "LOAD_NO"
    """One request would do, but not this load."""
    CANDIDATE = "CANDIDATE"
    """Holds by the closed forms; not simulated, since others came first."""
    HOLD = "HOLD"
    """Simulated with longer, noisy steps, every P99 stays within its target."""

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds: P99s under load, or plain times of a request alone."""

    itl_s: float
    ttft_s: float
    e2e_s: float

    def ratios(self, targets: Targets) -> dict[str, float]:
        """Latency over target, of each target that is set."""
        pairs = {
            "itl": (self.itl_s, targets.itl_s),
            "ttft": (self.ttft_s, targets.ttft_s),
            "e2e": (self.e2e_s, targets.e2e_s),
        }
        return {name: value / limit for name, (value, limit) in pairs.items() if limit is not None}

    def worst(self, targets: Targets) -> tuple[str, float]:
        """The target that is missed by most, or met by least, and its ratio."""
        ratios = self.ratios(targets)
        name = max(ratios, key=lambda key: ratios[key])
        return name, ratios[name]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What binds: `needed` against `limit`, both in `unit`."""

    name: str
    needed: float
    limit: float
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """One topology at one precision. Later rungs are None where an earlier one said no."""

    topology: Topology
    precision: Precision
    verdict: Verdict
    constraint: Constraint
    bounds: PhysicalBounds
    memory: MemoryFit
    alone: Latencies | None = None
    limits: StepLimits | None = None
    load: LoadEstimate | None = None
    predicted: Latencies | None = None
    """P99s: simulated if the verdict is HOLD or `was_simulated`, else estimated."""
    was_simulated: bool = False
    ratio: float = float("inf")
    """Worst latency over target, at the rung that decided."""

    @property
    def margin(self) -> float:
        """Room to the nearest target as a share of the prediction; negative where one is missed."""
        return 1 / self.ratio - 1 if self.ratio > 0 else float("inf")
