"""A server's recorded steps: how long they took, and models of that."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from benchmarks.cpu.takt_server import Columns

from takt.plan.simulate.measured_steps import MeasuredSteps
from takt.plan.simulate.recorded_load import RecordedLoad, RecordedStep, fit_thinned, learn
from takt.scheduler.step_time import StepFeatures

_PAUSE_NS = 2_000_000
"""A longer pause between two steps was idleness."""


def durations_ns(steps: Columns) -> npt.NDArray[np.int64]:
    """int64 `[num_steps]`: schedule to update, as predictions mean it."""
    return steps["update_end_ns"] - steps["schedule_start_ns"]


def periods_ns(steps: Columns) -> npt.NDArray[np.int64]:
    """From a step to the next; where the engine idled between them, the step alone."""
    own = durations_ns(steps)
    between = np.append(steps["schedule_start_ns"][1:] - steps["update_end_ns"][:-1], 0)
    return own + np.where((between >= 0) & (between <= _PAUSE_NS), between, 0)


def samples(steps: Columns, times_ns: npt.NDArray[np.int64]) -> list[tuple[StepFeatures, float]]:
    """What each step did, and its time."""
    names = ("num_decode_seqs", "num_prefill_tokens", "num_kv_tokens_read", "num_qk_pairs")
    rows = zip(*(steps[name].tolist() for name in names), strict=True)
    return [
        (StepFeatures(*row), float(time)) for row, time in zip(rows, times_ns.tolist(), strict=True)
    ]


def fitted(steps: Columns) -> MeasuredSteps:
    """A model of the periods of these steps, with all their residuals."""
    timed = samples(steps, periods_ns(steps))
    return MeasuredSteps.of(fit_thinned(timed), timed)


def learned(steps: Columns, start_ns: int) -> RecordedLoad:
    """From the periods of a load that began at `start_ns`, one half judged by the other; with the
    machine's speed as it was."""
    ends_ns = (steps["update_end_ns"] - start_ns).tolist()
    timed = zip(ends_ns, samples(steps, periods_ns(steps)), strict=True)
    return learn([RecordedStep(end_ns, *sample) for end_ns, sample in timed if end_ns > 0])


def slowdown(steps: Columns, earlier: MeasuredSteps) -> float:
    """How many times as long these steps took as earlier ones would have."""
    expected_ns = sum(
        earlier.predict_ns(features) for features, _ in samples(steps, periods_ns(steps))
    )
    return float(periods_ns(steps).sum() / expected_ns)
