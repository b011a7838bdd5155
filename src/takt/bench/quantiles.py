"""Quantiles with distribution-free confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95

_EXACT_BELOW = 400
"""Up to this many samples the binomial is summed; above, n p (1 - p) decides for the normal."""

_Z = 1.959963984540054
"""Normal quantile of (1 + CONFIDENCE) / 2."""


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
    if n <= _EXACT_BELOW or n * p * (1 - p) < 25:
        return _exact_ranks(n, p, tail)
    centre, spread = n * p, _Z * math.sqrt(n * p * (1 - p))
    # Half a rank for the step of a discrete distribution, outwards.
    return max(math.floor(centre - spread - 0.5) + 1, 0), min(
        math.ceil(centre + spread + 0.5), n
    ) + 1


def _exact_ranks(n: int, p: float, tail: float) -> tuple[int, int]:
    """P(B < l) <= tail for the largest such l, and P(B >= u) <= tail for the smallest such u."""
    log_p, log_q = math.log(p), math.log1p(-p)
    log_n = math.lgamma(n + 1)

    def mass(k: int) -> float:
        log_choose = log_n - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        return math.exp(log_choose + k * log_p + (n - k) * log_q)

    low, below = 0, mass(0)
    while low < n and below <= tail:
        low += 1
        below += mass(low)
    high, above = n + 1, mass(n)
    while high > 1 and above <= tail:
        high -= 1
        above += mass(high - 1)
    return low, high
