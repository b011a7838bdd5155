"""One upstream as the router sees it: health, load, predicted latency, breaker."""

from __future__ import annotations

import os

from takt.clock import Clock
from takt.errors import ConfigError
from takt.gateway.breaker import Breaker
from takt.gateway.policy import UpstreamConfig
from takt.gateway.retry import Uniform

LATENCY_WEIGHT = 0.2
"""Of the newest observation in the running mean."""

NS_PER_MS = 1_000_000


class Upstream:
    """Owned by the router; attempts report to it."""

    def __init__(self, config: UpstreamConfig, clock: Clock, uniform: Uniform) -> None:
        """Raises `ConfigError` if the variable with its key is not set."""
        self.url = config.url
        self.deduplicates = config.deduplicates
        self.sends_done = config.sends_done
        self.ca_file = config.ca_file
        self.health_path = config.health_path
        self.api_key = _api_key(config)
        self.breaker = Breaker(clock, uniform)
        self.is_healthy = False
        self.is_draining = False
        self.num_in_flight = 0
        self._latency_ns: float | None = None

    @property
    def can_serve(self) -> bool:
        return self.is_healthy and not self.is_draining and self.breaker.can_pass

    @property
    def predicted_latency_ns(self) -> float:
        """Latency if one more request is sent: one that nobody measured yet is worth a try."""
        return (self._latency_ns or 0.0) * (self.num_in_flight + 1)

    def begin(self) -> None:
        self.num_in_flight += 1
        self.breaker.begin()

    def success(self, latency_ns: int) -> None:
        """An answer began after `latency_ns`. The attempt stays in flight until `end`."""
        self.breaker.success()
        if self._latency_ns is None:
            self._latency_ns = latency_ns
        else:
            self._latency_ns += LATENCY_WEIGHT * (latency_ns - self._latency_ns)

    def failure(self) -> None:
        self.breaker.failure()

    def end_well(self, latency_ns: int) -> None:
        """`success` and `end` in one, of an answer that came whole at once."""
        self.success(latency_ns)
        self.end()

    def end(self) -> None:
        self.num_in_flight -= 1


def _api_key(config: UpstreamConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env)
    if not key:
        raise ConfigError(
            f"upstream {config.url}: the environment variable {config.api_key_env} is not set"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"upstream {config.url}: the environment variable {config.api_key_env} holds "
            "characters that cannot stand in a header"
        )
    return key
