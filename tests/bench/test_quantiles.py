from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takt.bench.quantiles import quantile, rank_interval


def binomial_cdf(k: int, n: int, p: float) -> float:
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def coverage(n: int, p: float, low: int, high: int) -> float:
    """P(low <= samples below the quantile < high), of a continuous distribution."""
    return binomial_cdf(high - 1, n, p) - (binomial_cdf(low - 1, n, p) if low else 0.0)


@settings(deadline=None)
@given(st.integers(1, 600), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_intervals_cover_and_are_no_wider_than_needed(n: int, p: float) -> None:
    low, high = rank_interval(n, p)
    assert 0 <= low < high <= n + 1
    assert coverage(n, p, low, high) >= 0.95 - 1e-9
    # One rank less on a side would leave more than its half of the error outside.
    if high <= n:
        assert 1 - binomial_cdf(high - 2, n, p) > 0.025 - 1e-9
    if low:
        assert binomial_cdf(low, n, p) > 0.025 - 1e-9


def test_large_samples_cover_too() -> None:
    for n in (2600, 12_700, 100_000):
        low, high = rank_interval(n, 0.99)
        spread = math.sqrt(n * 0.99 * 0.01)
        assert low <= 0.99 * n - 1.9 * spread
        assert high >= 0.99 * n + 1.9 * spread
        assert high - low <= 4.2 * spread + 3


def test_known_interval_of_a_median_of_ten() -> None:
    assert rank_interval(10, 0.5) == (2, 9)


def test_few_samples_leave_the_tail_unbounded() -> None:
    values = np.arange(1.0, 101.0)
    p99 = quantile(values, 0.99)
    assert (p99.value, p99.low, p99.high) == (99.0, 97.0, None)
    single = quantile(np.array([3.0]), 0.5)
    assert (single.value, single.low, single.high) == (3.0, None, None)


@pytest.mark.parametrize(("n", "p", "value"), [(20, 0.95, 19), (100, 0.99, 99), (10, 0.5, 5)])
def test_the_value_is_the_order_statistic(n: int, p: float, value: float) -> None:
    assert quantile(np.arange(1.0, n + 1), p).value == value
