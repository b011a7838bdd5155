"""P99s that a simulation gives for the very requests that the service got."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.replicate import Experiment, Interval, TraceLoad, run_replications
from takt.plan.simulate.simulator import SimulatedServer
from takt.verify.calibration import Calibration
from takt.verify.measurement import WARM_UP_SHARE

REPLICATIONS = 8

INLINE_ARRIVALS = 300
"""Fewer are simulated sooner than processes for it have started."""

LATENCIES = ("itl", "ttft", "e2e")


@dataclass(frozen=True, slots=True)
class Band:
    """Milliseconds: the expected P99, and where that of one run lies with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    source: str
    bands: dict[str, Band]
    """By the names in `LATENCIES`."""


def from_steps(
    calibration: Calibration, arrivals: Sequence[Arrival], *, source: str, seed: int
) -> Prediction:
    """With the service's own step times, and residuals drawn from those that were seen."""
    experiment = Experiment(
        calibration.server,
        TraceLoad(tuple(arrivals)),
        noise=None,
        seed=seed,
        warm_up_share=WARM_UP_SHARE,
    )
    outside_ms = calibration.outside_s * 1e3
    bands = {}
    for name, band in _bands(experiment, len(arrivals)).items():
        added = 0.0 if name == "itl" else outside_ms
        bands[name] = Band(band.value + added, band.low + added, band.high + added)
    return Prediction(f"{calibration.num_steps} steps {source}", bands)


def from_plan(
    server: SimulatedServer,
    arrivals: Sequence[Arrival],
    *,
    num_replicas: int,
    bias: float,
    noise: float,
    seed: int,
) -> Prediction:
    """With the device model's step times; the band reaches from steps `bias` times as fast to
    steps as many times as long, which a HOLD has been simulated with."""
    experiment = Experiment(
        server,
        TraceLoad(tuple(arrivals[::num_replicas])),
        noise=noise,
        seed=seed,
        warm_up_share=WARM_UP_SHARE,
    )
    expected = _bands(experiment, len(arrivals))
    slower = _bands(replace(experiment, bias=bias), len(arrivals))
    faster = _bands(replace(experiment, bias=1 / bias), len(arrivals))
    return Prediction(
        "the plan",
        {
            name: Band(expected[name].value, faster[name].low, slower[name].high)
            for name in expected
        },
    )


def _bands(experiment: Experiment, num_arrivals: int) -> dict[str, Band]:
    num_processes = 1 if num_arrivals < INLINE_ARRIVALS else None
    found = run_replications(experiment, REPLICATIONS, num_processes=num_processes)
    return {
        name: _band(found[f"{name}_p99_ms"])
        for name in LATENCIES
        if not math.isnan(found[f"{name}_p99_ms"].mean)
    }


def _band(interval: Interval) -> Band:
    """The interval holds the mean of n runs; a single further run lies sqrt(n + 1) times as far."""
    half = (interval.high - interval.mean) * math.sqrt(REPLICATIONS + 1)
    return Band(interval.mean, interval.mean - half, interval.mean + half)
