"""The capacity of a mix: the highest rate at which a fixed budget's queue does not rise.

The simulator, with a model of steps that ran just before, says where to look; the real server
decides, in steps of 7 %. A run is given up as soon as its queue has risen for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from benchmarks.contract.mix import Mix

from takt.bench.record import RequestRecord

CAPACITY_S = 120.0
FACTOR = 1.07
MAX_RUNS = 5
_RISE = 1.25
_RISE_MS = 100.0
_SURE_PART = 0.25
"""A queue that was empty has risen once somebody waits for so large a part of the run."""

Floats = npt.NDArray[np.float64]


def rises(arrived_s: Floats, waits_ms: Floats, seconds: float) -> bool:
    """Whether requests of the last third wait longer than those of the middle one."""
    middle = waits_ms[(arrived_s >= seconds / 3) & (arrived_s < 2 * seconds / 3)]
    last = waits_ms[arrived_s >= 2 * seconds / 3]
    if not len(middle) or not len(last):
        return True
    return bool(last.mean() > _RISE * middle.mean() + _RISE_MS)


@dataclass(frozen=True, slots=True)
class RisingQueue:
    """Judges a run of so many seconds, at its end or earlier where that is certain.

    Who has no token yet has waited at least until now: what is found can only become more.
    """

    seconds: float

    def __call__(self, records: Sequence[RequestRecord], now_s: float) -> bool:
        arrived_s, waits_ms = self._waits(records, now_s)
        if waits_ms.max(initial=0.0) > 1e3 * _SURE_PART * self.seconds:
            return True
        return now_s >= self.seconds and rises(arrived_s, waits_ms, self.seconds)

    def _waits(self, records: Sequence[RequestRecord], now_s: float) -> tuple[Floats, Floats]:
        """Times since the first request was planned, and waits so far."""
        start_ns = min((r.planned_ns for r in records if r.planned_ns), default=0)
        now_ns = start_ns + now_s * 1e9
        planned = [r for r in records if 0 < r.planned_ns <= now_ns]
        arrived_s = np.array([(r.planned_ns - start_ns) / 1e9 for r in planned])
        firsts_ns = [r.stamps[0] if r.stamps else now_ns for r in planned]
        waits_ms = np.array(
            [(first - r.planned_ns) / 1e6 for r, first in zip(planned, firsts_ns, strict=True)]
        )
        return arrived_s, waits_ms


def search(holds: Callable[[float], bool], guess: float) -> float:
    """The highest rate that held, from a guess on in steps of `FACTOR`.

    After `MAX_RUNS` it is the last one, or a step below it if none has held.
    """
    does_hold = holds(guess)
    factor = FACTOR if does_hold else 1 / FACTOR
    rate = guess
    for _ in range(MAX_RUNS - 1):
        if holds(rate * factor) is not does_hold:
            return rate if does_hold else rate * factor
        rate *= factor
    return rate if does_hold else rate * factor


def by_simulation(rises_at: Callable[[Mix], bool], scale: int = 1) -> float:
    """Likewise by simulation, to 2 %."""
    low, high = 0.05, 20.0
    while high / low > 1.02:
        rate = (low * high) ** 0.5
        if rises_at(Mix(rate, CAPACITY_S, scale=scale)):
            high = rate
        else:
            low = rate
    return low
