"""Predicted against measured, and both against the targets: the verdict of a verification."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from takt.bench.quantiles import Quantile
from takt.plan.workload import Targets
from takt.verify.measurement import Measurement
from takt.verify.outside import LeftOut
from takt.verify.prediction import LATENCIES, Band, Prediction


class Outcome(enum.Enum):
    AS_PREDICTED = "as predicted"
    FASTER = "faster"
    """Below what was predicted: the plan holds, though the model of it is off."""
    SLOWER = "SLOWER"


@dataclass(frozen=True, slots=True)
class Row:
    """One P99, in milliseconds."""

    name: str
    predicted: Band
    measured: Quantile
    target_ms: float | None
    outcome: Outcome

    @property
    def difference(self) -> float:
        """Measured over predicted, less 1."""
        return self.measured.value / self.predicted.value - 1

    @property
    def meets_target(self) -> bool:
        return self.target_ms is None or self.measured.value <= self.target_ms

    @property
    def passes(self) -> bool:
        return self.outcome is not Outcome.SLOWER and self.meets_target


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: tuple[Row, ...]
    source: str
    """What the prediction rests on."""
    num_requests: int
    num_failed: int
    failures: dict[str, int]
    offered_per_s: float
    gaps_are_tokens: bool
    beside: tuple[Prediction, ...] = ()
    """The same load simulated with other steps; nothing is judged by them."""
    left_out: LeftOut | None = None

    @property
    def passes(self) -> bool:
        """Every P99 is within its target and not above its prediction, and no request failed."""
        return all(row.passes for row in self.rows) and self.num_failed == 0


def compare(
    prediction: Prediction,
    measurement: Measurement,
    targets: Targets | None,
    *,
    tolerance: float,
    beside: Sequence[Prediction] = (),
    left_out: LeftOut | None = None,
) -> Comparison:
    """`tolerance` is the share by which a P99 may differ even if the band is narrower."""
    rows = []
    for name in LATENCIES:
        band, measured = prediction.bands.get(name), getattr(measurement, name)
        if band is None or measured is None:
            continue  # a load of single tokens has no gaps
        limit_s = None if targets is None else getattr(targets, f"{name}_s")
        rows.append(
            Row(
                name=name,
                predicted=band,
                measured=measured,
                target_ms=None if limit_s is None else limit_s * 1e3,
                outcome=_outcome(band, measured.value, tolerance),
            )
        )
    arrivals = measurement.arrivals
    seconds = arrivals[-1].time_ns / 1e9
    return Comparison(
        rows=tuple(rows),
        source=prediction.source,
        num_requests=len(arrivals) + measurement.num_failed,
        num_failed=measurement.num_failed,
        failures=measurement.failures,
        offered_per_s=len(arrivals) / seconds if seconds else 0.0,
        gaps_are_tokens=measurement.gaps_are_tokens,
        beside=tuple(beside),
        left_out=left_out,
    )


def _outcome(band: Band, measured: float, tolerance: float) -> Outcome:
    if measured > max(band.high, band.value * (1 + tolerance)):
        return Outcome.SLOWER
    if measured < min(band.low, band.value * (1 - tolerance)):
        return Outcome.FASTER
    return Outcome.AS_PREDICTED
