"""Predictions of steps, each made before its step ran, at 70 % of the capacity."""

from __future__ import annotations

import numpy as np
from benchmarks.contract.cost import Run
from benchmarks.contract.session import Session
from benchmarks.contract.steps import durations_ns
from benchmarks.cpu.bar import BarResult, Figure

WARM_UP_STEPS = 500
LEAST_STEPS = 10_000


def measure(session: Session) -> BarResult:
    steps = session.mixed.steps
    skipped = 0 if session.is_quick else WARM_UP_STEPS
    measured = durations_ns(steps)[skipped:].astype(np.float64)
    predicted = steps["predicted_ns"][skipped:].astype(np.float64)
    bound = steps["predicted_p99_ns"][skipped:]
    error = np.abs(measured / predicted - 1)
    covered = float((measured <= bound).mean())
    has_prefill = steps["num_prefill_tokens"][skipped:] > 0
    return BarResult(
        [
            Figure("mean absolute error", 100 * float(error.mean()), "%", 5.0),
            Figure("within the predicted P99, least", 100 * covered, "%", 98.5, is_floor=True),
            Figure("within the predicted P99, most", 100 * covered, "%", 99.5),
            Figure("steps", float(len(measured)), "", LEAST_STEPS, is_floor=True),
        ],
        {
            "error of steps without a prompt %": 100 * float(error[~has_prefill].mean()),
            "error of steps with one %": 100 * float(error[has_prefill].mean()),
            "median error %": 100 * float(np.median(error)),
        },
    )


def runs(session: Session) -> list[Run]:
    """It only looks at the run that it shares with `mixed`."""
    return []
