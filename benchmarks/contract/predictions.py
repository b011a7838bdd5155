"""Predictions of recorded steps by the step-time model as it is now.

    python -m benchmarks.contract.predictions build/bench/contract_steps.npz

The record is one that `python -m benchmarks.contract prediction` has left. Each step is predicted
before the model sees it; its first knowledge is a fit to the record's beginning, which is not
judged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
from benchmarks.contract.steps import durations_ns, samples
from benchmarks.cpu.takt_server import Columns
from rich.console import Console
from rich.table import Table

from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.step_time import StepFeatures, StepTimeModel

CALIBRATION_STEPS = 300


def replay(steps: Columns) -> tuple[np.ndarray, np.ndarray]:
    """What is predicted of each step after the calibration, and its P99; float64 nanoseconds."""
    all_samples = samples(steps, durations_ns(steps))
    first, rest = all_samples[:CALIBRATION_STEPS], all_samples[CALIBRATION_STEPS:]
    model = LearnedStepTime(StepTimeModel.fit(first).with_residuals(first))
    predicted, bound = np.empty(len(rest)), np.empty(len(rest))
    for index, (features, duration_ns) in enumerate(rest):
        predicted[index] = model.predict_ns(features)
        bound[index] = model.p99_ns(features)
        model.observe(features, duration_ns)
    return predicted, bound


KINDS: dict[str, Callable[[StepFeatures], bool]] = {
    "all": lambda f: True,
    "without a prompt": lambda f: f.num_prefill_tokens == 0,
    "with one, and decodes": lambda f: f.num_prefill_tokens > 0 and f.num_decode_seqs > 0,
    "prompts alone": lambda f: f.num_decode_seqs == 0,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contract.predictions", description=__doc__
    )
    parser.add_argument("record", help="an npz file")
    with np.load(parser.parse_args().record) as columns:
        steps = {name: columns[name] for name in columns.files}
    if len(steps["schedule_start_ns"]) <= CALIBRATION_STEPS:
        parser.error(f"the record has no more than the {CALIBRATION_STEPS} steps of calibration")
    predicted, bound = replay(steps)
    measured = durations_ns(steps)
    rows = [features for features, _ in samples(steps, measured)[CALIBRATION_STEPS:]]
    measured = measured[CALIBRATION_STEPS:]
    table = Table(title="measured / predicted")
    for name in ("steps", "number", "mean error %", "median error %", "within P99 %", "median"):
        table.add_column(name, justify="right")
    for name, is_of in KINDS.items():
        chosen = np.array([is_of(features) for features in rows])
        if chosen.any():
            ratio = (measured / predicted)[chosen]
            error = 100 * np.abs(ratio - 1)
            within = 100 * float((measured <= bound)[chosen].mean())
            table.add_row(
                name,
                str(int(chosen.sum())),
                f"{error.mean():.2f}",
                f"{np.median(error):.2f}",
                f"{within:.2f}",
                f"{np.median(ratio):.3f}",
            )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
