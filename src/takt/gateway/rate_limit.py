"""A limit on each tenant's rate of requests."""

from __future__ import annotations

from collections import OrderedDict

from takt.clock import Clock

NS_PER_SECOND = 1_000_000_000

MAX_TENANTS = 65_536
"""Beyond it the tenant that was quiet longest is forgotten; it finds a full bucket again."""


class RateLimiter:
    """A token bucket per tenant, one second deep. A rate of zero is no limit."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._rate = per_second
        self._depth = max(per_second, 1.0)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def retry_after_seconds(self, tenant: str) -> float | None:
        """Takes one request from the tenant's bucket; None if it had one, else the wait."""
        if self._rate <= 0:
            return None
        now_ns = self._clock.now_ns()
        level, seen_ns = self._buckets.pop(tenant, (self._depth, now_ns))
        level = min(level + self._rate * (now_ns - seen_ns) / NS_PER_SECOND, self._depth)
        wait = None if level >= 1 else (1 - level) / self._rate
        self._buckets[tenant] = (level - 1 if wait is None else level, now_ns)
        if len(self._buckets) > MAX_TENANTS:
            self._buckets.popitem(last=False)
        return wait
