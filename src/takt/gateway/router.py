"""Which upstream gets an attempt: the better of two drawn at random, by predicted latency."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from takt.gateway.upstream import Upstream

PARKED_WAIT_MS = 200
"""Between two looks at upstreams of which none can serve."""


class Router:
    """Two random candidates and the better one: the best of all would draw every gateway's load
    to the same upstream at once, and one at random would not look at load at all."""

    def __init__(self, upstreams: Iterable[Upstream], rng: random.Random) -> None:
        self.upstreams = {upstream.url: upstream for upstream in upstreams}
        self._rng = rng

    def choose(
        self,
        urls: Sequence[str],
        *,
        prefer: str = "",
        avoid: str = "",
    ) -> Upstream | None:
        """None if no upstream of `urls` can serve. `avoid` is taken only if nothing else is left;
        `prefer`, if it can serve, is taken."""
        if len(urls) == 1:
            only = self.upstreams[urls[0]]
            return only if only.can_serve else None
        candidates = [upstream for url in urls if (upstream := self.upstreams[url]).can_serve]
        for upstream in candidates:
            if upstream.url == prefer:
                return upstream
        others = [upstream for upstream in candidates if upstream.url != avoid] or candidates
        if len(others) > 2:
            others = self._rng.sample(others, 2)
        return min(others, key=lambda upstream: upstream.predicted_latency_ns, default=None)

    def wait_ms(self, urls: Sequence[str]) -> int:
        """How long until it is worth choosing again."""
        waits = [
            self.upstreams[url].breaker.wait_ms for url in urls if self.upstreams[url].is_healthy
        ]
        positive = [wait for wait in waits if wait > 0]
        return min(min(positive, default=PARKED_WAIT_MS), PARKED_WAIT_MS)

    @property
    def num_serving(self) -> int:
        return sum(one.is_healthy and not one.is_draining for one in self.upstreams.values())
