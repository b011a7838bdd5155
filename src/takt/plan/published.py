"""Step times published elsewhere: what the constants were fitted on, and what judges them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from takt.plan.hardware import known_accelerators
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.step_cost import StepCost
from takt.plan.topology import Topology

CONTEXT = 576


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One decode of one sequence, in seconds."""

    model: str
    device: str
    topology: Topology
    weights: str
    time_s: float

    @property
    def label(self) -> str:
        return f"{self.model} {self.weights} on {self.device}, {self.topology.label}"

    def predicted_s(self, other_kernels_s: float | None = None) -> float:
        """By the step cost; `other_kernels_s` replaces the device's constant of each layer."""
        accelerator = known_accelerators()[self.device]
        if other_kernels_s is not None:
            accelerator = replace(accelerator, other_kernels_s_per_layer=other_kernels_s)
        precision = parse_precision(self.weights)
        cost = StepCost(find_model(self.model), accelerator, self.topology, precision)
        return cost.decode_s(1, CONTEXT)

    def error(self, other_kernels_s: float | None = None) -> float:
        """Predicted over published, less 1."""
        return self.predicted_s(other_kernels_s) / self.time_s - 1


def published_steps(kind: str) -> list[PublishedStep]:
    """`kind` is `fitted` or `judged`."""
    path = Path(str(resources.files("takt.plan"))) / "data" / "published_steps.toml"
    rows = tomllib.loads(path.read_text())[kind]["steps"]
    return [
        PublishedStep(model, device, Topology(tp, pp, 1), weights, ms / 1e3)
        for model, device, tp, pp, weights, ms in rows
    ]


def fit_other_kernels_s(steps: list[PublishedStep]) -> float:
    """The constant per layer that makes the relative squared error of bf16 steps least.

    A step is linear in it: t = base + layers x constant.
    """
    numerator = denominator = 0.0
    for step in steps:
        if step.weights != "bf16" or step.model == "llama-3-70b" or step.device == "L40S":
            continue
        base = step.predicted_s(0.0)
        slope = (step.predicted_s(1e-6) - base) / 1e-6
        numerator += (step.time_s - base) * slope / step.time_s**2
        denominator += (slope / step.time_s) ** 2
    return numerator / denominator
