"""Quantiles with distribution-free confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95

_NEGLIGIBLE_SPREADS = 9.0
"""Standard deviations from the mean beyond which a binomial's tail is below 1e-17."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """`low` and `high` hold the true quantile with at least 95 % confidence.

    None is a side without bound: too few samples to say.
    """

    value: float
    low: float | None
    high: float | None


def quantile(sorted_values: npt.NDArray[np.float64], p: float) -> Quantile:
    """Quantile `p` of sorted samples `[n]`, n >= 1, and order statistics around it.

    The value is the order statistic of rank ceil(n p): a latency that was measured. The number of
    samples below the true quantile is binomial(n, p), whatever the distribution, if samples are
    independent; those of one stream are not quite, and the interval is then too narrow.
    """
    n = len(sorted_values)
    # 0.95 * 20 is 19.000000000000004 in floating point: its rank is 19.
    rank = min(max(math.ceil(n * p - 1e-9), 1), n)
    low_rank, high_rank = rank_interval(n, p)
    return Quantile(
        float(sorted_values[rank - 1]),
        float(sorted_values[low_rank - 1]) if low_rank >= 1 else None,
        float(sorted_values[high_rank - 1]) if high_rank <= n else None,
    )


def rank_interval(n: int, p: float) -> tuple[int, int]:
    """Ranks l < u, 1-based, with P(X_l <= quantile < X_u) at least the confidence.

    0 and n + 1 stand for no bound on that side. Each side leaves at most half of what is left over.
    """
    tail = (1 - CONFIDENCE) / 2
    reach = math.ceil(_NEGLIGIBLE_SPREADS * math.sqrt(n * p * (1 - p))) + 1
    low = max(math.floor(n * p) - reach, 0)
    high = min(math.ceil(n * p) + reach, n) + 1
    mass = _binomial_mass(n, p)
    below = mass(low)
    while below <= tail:
        low += 1
        below += mass(low)
    above = mass(high - 1)
    while above <= tail:
        high -= 1
        above += mass(high - 1)
    return low, high


def _binomial_mass(n: int, p: float) -> Callable[[int], float]:
    log_p, log_q, log_n = math.log(p), math.log1p(-p), math.lgamma(n + 1)

    def mass(k: int) -> float:
        log_choose = log_n - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        return math.exp(log_choose + k * log_p + (n - k) * log_q)

    return mass
