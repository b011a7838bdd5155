"""Targets of a request, and whether it met them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from takt.bench.quantiles import quantile
from takt.bench.request_times import RequestTimes
from takt.errors import ConfigError


def _p99_gap_ms(times: RequestTimes) -> float:
    return quantile(np.sort(times.gaps_ms), 0.99).value if len(times.gaps_ms) else 0.0


_MEASURES: Mapping[str, Callable[[RequestTimes], float]] = {
    "ttft": lambda times: times.ttft_ms,
    "tpot": lambda times: times.tpot_ms or 0.0,
    "itl": _p99_gap_ms,
    "gap": lambda times: times.largest_gap_ms,
    "e2e": lambda times: times.e2e_ms,
}


@dataclass(frozen=True, slots=True)
class Targets:
    """Upper bounds in milliseconds, by measure; false if there is none."""

    limits_ms: Mapping[str, float]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Targets:
        """Reads `ttft:200` and the like; raises `ConfigError`."""
        limits: dict[str, float] = {}
        for text in texts:
            name, _, value = text.partition(":")
            if name not in _MEASURES:
                raise ConfigError(f"--goodput {text!r}: a target is one of {', '.join(_MEASURES)}")
            if name in limits:
                raise ConfigError(f"--goodput {text!r}: there are two targets for {name}")
            limits[name] = _milliseconds(value, text)
        return cls(limits)

    def __bool__(self) -> bool:
        return bool(self.limits_ms)

    def are_met(self, times: RequestTimes) -> bool:
        return all(_MEASURES[name](times) <= limit for name, limit in self.limits_ms.items())


def _milliseconds(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"--goodput {text!r}: milliseconds must be a number above 0")
    return number
