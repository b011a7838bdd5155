"""Retries as a share of traffic: when everything fails, retries must not multiply the load."""

from __future__ import annotations

from takt.clock import Clock

NS_PER_SECOND = 1_000_000_000

RESERVE_SECONDS = 10.0
"""Of the minimum rate that may be saved up, and of requests whose share may."""


class RetryBudget:
    """Each request deposits its share; a retry withdraws one; a small rate is always allowed."""

    def __init__(self, percent: float, min_per_second: float, clock: Clock) -> None:
        self._share = percent / 100
        self._rate = min_per_second
        self._limit = max(min_per_second * RESERVE_SECONDS, 100 * self._share)
        self._clock = clock
        self._balance = min_per_second * RESERVE_SECONDS
        self._seen_ns = clock.now_ns()

    def deposit(self) -> None:
        self._balance = min(self._balance + self._share, self._limit)

    def withdraw(self) -> bool:
        """True if a retry may be made now."""
        now_ns = self._clock.now_ns()
        accrued = self._rate * (now_ns - self._seen_ns) / NS_PER_SECOND
        self._seen_ns = now_ns
        self._balance = min(self._balance + accrued, self._limit)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
