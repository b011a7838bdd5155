"""What a simulation of steps does not model, measured: each is to be seen to be small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from takt.observe.step_log import LoggedStep
from takt.plan.simulate.result import weighted_quantile
from takt.verify.calibration import LoadCalibration, step_periods
from takt.verify.measurement import WARM_UP_SHARE, Measurement


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Of one load; times in milliseconds."""

    slowdown: float
    """How many times as long its steps took as those of the calibration before it."""
    slowdown_range: tuple[float, float]
    itl_of_steps: float
    """P99 of the gaps between the ends of steps: what is more came on the way to the client."""
    way_p50: float
    """From the end of a request's first step to its client."""
    way_p99: float
    cached_share: float
    """Of the prompts' tokens: the simulator computes them all."""
    coalesced_share: float
    """Of the tokens, which reached the client together with the one before."""
    autocorrelation: float
    """Of a step's residual with the next one's, which the simulator draws one by one."""


def left_out(
    steps: Sequence[LoggedStep], measurement: Measurement, load: LoadCalibration
) -> LeftOut:
    """`steps` are those of the load, on the clock of `measurement`."""
    arrivals, start_ns = measurement.arrivals, measurement.start_ns
    begin_ns = start_ns + arrivals[int(len(arrivals) * WARM_UP_SHARE)].time_ns
    last_ns = start_ns + arrivals[-1].time_ns
    inside = [p for p in step_periods(steps) if begin_ns <= p[0] <= last_ns and p[1][0] > 0]
    itl_ns = weighted_quantile(
        np.array([duration_ns for _, _, duration_ns in inside]),
        np.array([float(features[0]) for _, features, _ in inside]),
        0.99,
    )
    ends_ns = np.array([step.update_end_ns for step in steps], dtype=np.int64)
    stamps_ns = np.array(measurement.first_stamps_ns, dtype=np.int64)
    places = np.searchsorted(ends_ns, stamps_ns, side="right") - 1
    ways_ns = (stamps_ns - ends_ns[places])[places >= 0]
    way_p50, way_p99 = np.quantile(ways_ns, (0.5, 0.99)) / 1e6 if len(ways_ns) else (0.0, 0.0)
    return LeftOut(
        slowdown=load.slowdown,
        slowdown_range=load.slowdown_range,
        itl_of_steps=itl_ns / 1e6,
        way_p50=float(way_p50),
        way_p99=float(way_p99),
        cached_share=measurement.cached_share,
        coalesced_share=measurement.coalesced_share,
        autocorrelation=load.autocorrelation,
    )
