"""A server's recorded steps: what was predicted of them, and a model of their length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from benchmarks.cpu.takt_server import Columns

from takt.scheduler.step_time import StepFeatures, StepTimeModel

_FIT_SAMPLES = 3000
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


def fitted(steps: Columns) -> StepTimeModel:
    """A model of the periods of these steps, with all their residuals."""
    timed = samples(steps, periods_ns(steps))
    thin = max(1, len(timed) // _FIT_SAMPLES)
    return StepTimeModel.fit(timed[::thin]).with_residuals(timed)
