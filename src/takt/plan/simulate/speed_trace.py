"""How fast the machine was while a load ran, which a replay of that load is given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedTrace:
    """How many times as long as usual steps took, in equal slices of the arrivals' time.

    Before the first slice and after the last the nearest one holds.
    """

    slice_ns: float
    factors: tuple[float, ...]

    def factor_at(self, now_ns: float) -> float:
        index = int(now_ns // self.slice_ns)
        return self.factors[min(max(index, 0), len(self.factors) - 1)]
