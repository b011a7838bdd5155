"""Looks at every upstream now and then: who answers is healthy."""

from __future__ import annotations

import asyncio
import logging

from takt.gateway.attempt import UpstreamClient
from takt.gateway.router import Router
from takt.gateway.upstream import Upstream

logger = logging.getLogger("takt.gateway")

TIMEOUT_SECONDS = 2.0

MAX_FAILURES = 2
"""In a row, that take an upstream out; one answer brings it back."""


class HealthChecker:
    """An upstream that answers 5xx to its health check, such as one that drains, gets no new
    requests; what it is doing may end."""

    def __init__(self, router: Router, client: UpstreamClient, interval_ms: int) -> None:
        self._router = router
        self._client = client
        self._interval_ms = interval_ms
        self._num_failures: dict[str, int] = {}

    async def check_all(self) -> None:
        await asyncio.gather(*(self._check(one) for one in self._router.upstreams.values()))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            await self.check_all()

    async def _check(self, upstream: Upstream) -> None:
        problem = await self._client.health_problem(upstream, TIMEOUT_SECONDS)
        is_alive = problem is None
        failures = 0 if is_alive else self._num_failures.get(upstream.url, 0) + 1
        self._num_failures[upstream.url] = failures
        is_healthy = is_alive or (upstream.is_healthy and failures < MAX_FAILURES)
        if is_healthy != upstream.is_healthy:
            state = "healthy" if problem is None else f"not healthy: {problem}"
            logger.warning("upstream %s is %s", upstream.url, state)
        elif problem is not None and failures == 1 and not is_healthy:
            # At the start: it was not healthy before either.
            logger.warning("upstream %s is not healthy: %s", upstream.url, problem)
        upstream.is_healthy = is_healthy
