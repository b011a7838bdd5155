"""Prometheus metrics of one gateway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from takt.gateway.upstream import Upstream

SECONDS = tuple(0.00025 * 2**i for i in range(20))
"""0.25 ms to 131 s, each twice the one before."""

TRIES = (1, 2, 3, 4, 5, 6, 8, 12, 16)


class GatewayMetrics:
    """Every metric, in a registry that is given. `service` is the policy's name for a route."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._known: dict[tuple[str, ...], Any] = {}
        self.requests = Counter(
            "idempotent_request",
            "Answered requests with a key: executed here with success or not, or a duplicate that "
            "was given the answer of another.",
            ["service", "status"],
            registry=registry,
        )
        self.attempts = self._counter(
            "attempts", "Attempts at upstreams, by outcome.", "service", "upstream", "outcome"
        )
        self.unknown = self._counter(
            "unknown_outcomes",
            "Attempts that were sent and whose outcome is not known, by what followed.",
            "service",
            "action",
        )
        self.takeovers = self._counter("takeovers", "Expired leases taken over.", "service")
        self.leases_lost = self._counter("leases_lost", "Leases lost to another.", "service")
        self.dead_letters = self._counter("dead_letters", "Requests given up for good.", "service")
        self.hedges = self._counter("hedges", "Second attempts sent beside a slow one.", "service")
        self.rejected = self._counter("rejected", "Requests refused here, by reason.", "reason")
        self.tries = self._histogram("tries", "Attempts of a request.", TRIES, "service")
        self.retry_wait = self._histogram(
            "retry_wait_seconds", "Waits between two attempts.", SECONDS, "service"
        )
        self.request_seconds = self._histogram(
            "request_seconds", "Arrival of a request to the end of its answer.", SECONDS, "service"
        )
        self.store_seconds = self._histogram(
            "store_seconds", "A claim of a key, as the store answered it.", SECONDS
        )
        self.in_flight = self._gauge("requests_in_flight", "Requests being answered.")
        self.store_up = self._gauge("store_up", "1 while the store answers.")
        self.dead = self._gauge("dead_letters_kept", "Dead letters in the store.")

    def watch_upstreams(self, upstreams: Iterable[Upstream]) -> None:
        _UpstreamCollector(list(upstreams), self.registry)

    def watch_service(self, service: str) -> None:
        """Makes a service's series at zero, so that a first event is an increase."""
        for status in ("success", "failed", "duplicate"):
            self.requests.labels(service, status)
        for action in ("retry", "fail"):
            self.unknown.labels(service, action)
        for counter in (self.takeovers, self.leases_lost, self.dead_letters, self.hedges):
            counter.labels(service)

    def count_request(self, service: str, status: str) -> None:
        self._child(self.requests, "requests", service, status).inc()

    def count_attempt(self, service: str, upstream: str, outcome: str) -> None:
        self._child(self.attempts, "attempts", service, upstream, outcome).inc()

    def observe_tries(self, service: str, num_tries: int) -> None:
        self._child(self.tries, "tries", service).observe(num_tries)

    def observe_request(self, service: str, seconds: float) -> None:
        self._child(self.request_seconds, "request_seconds", service).observe(seconds)

    def _child(self, metric: Any, *name_and_labels: str) -> Any:
        """`metric.labels(...)`, whose checks and lock every request would otherwise pass again."""
        found = self._known.get(name_and_labels)
        if found is None:
            found = self._known[name_and_labels] = metric.labels(*name_and_labels[1:])
        return found

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"takt_gateway_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"takt_gateway_{name}", documentation, registry=self.registry)

    def _histogram(
        self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"takt_gateway_{name}", documentation, labels, buckets=buckets, registry=self.registry
        )


class _UpstreamCollector(Collector):
    """Reads the upstreams when it is asked."""

    def __init__(self, upstreams: list[Upstream], registry: CollectorRegistry) -> None:
        self._upstreams = upstreams
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterable[Metric]:
        up, breaker, in_flight = families = self._families()
        for one in self._upstreams:
            up.add_metric([one.url], float(one.is_healthy and not one.is_draining))
            breaker.add_metric([one.url], float(one.breaker.state))
            in_flight.add_metric([one.url], float(one.num_in_flight))
        return families

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        label = ["upstream"]
        return (
            GaugeMetricFamily(
                "takt_gateway_upstream_up", "1 while an upstream is healthy.", labels=label
            ),
            GaugeMetricFamily(
                "takt_gateway_breaker_state", "0 closed, 1 half open, 2 open.", labels=label
            ),
            GaugeMetricFamily(
                "takt_gateway_upstream_in_flight", "Attempts in flight.", labels=label
            ),
        )
