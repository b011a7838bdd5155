"""Prometheus metrics of one server: names in vLLM's shape under `takt_`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge

from takt.observe.engine_metrics import EngineFamilies, EngineMetrics, StepStats
from takt.observe.ledger.ledger import Ledger
from takt.observe.ledger.metrics import LedgerMetrics
from takt.observe.request_metrics import RequestFamilies, RequestMetrics
from takt.types.step_ids import STEPS_PER_REPLICA, replica_of

MAX_UNSETTLED_STEPS = 4096


class Metrics:
    """Every metric of a server and its engines, in a registry that is given.

    `observe_step` is fed with each step's record; the server reports tokens and requests, by the
    engine that served them. What is the server's own has the label of engine 0.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, num_engines: int = 1) -> None:
        self.registry = registry
        self._labels = {"model_name": model_name, "engine": "0"}
        families = EngineFamilies(registry)
        self.engines = [EngineMetrics(families, model_name, str(i)) for i in range(num_engines)]
        request_families = RequestFamilies(registry)
        self.requests = [
            RequestMetrics(request_families, model_name, str(i)) for i in range(num_engines)
        ]
        self._new_steps: list[StepStats] = []
        self._make_counters()
        self._make_gauges()

    def _make_counters(self) -> None:
        self._refused = Counter(
            "takt_requests_refused",
            "Requests answered 429, by reason.",
            [*self._labels, "reason"],
            registry=self.registry,
        )
        self._idempotent = Counter(
            "takt_idempotent_requests",
            "Requests with an Idempotency-Key: executed, joined while the first ran, given the "
            "kept answer, or refused since the key had another body.",
            [*self._labels, "outcome"],
            registry=self.registry,
        )
        for outcome in ("executed", "joined", "replayed", "mismatch"):
            self._idempotent.labels(*self._labels.values(), outcome)

    def _make_gauges(self) -> None:
        g = self._gauge
        self._in_flight = g("http_requests_in_flight", "HTTP requests being answered.")
        self._idempotency_bytes = g(
            "idempotency_kept_bytes", "Answers kept for requests that come again with their key."
        )

    def observe_step(self, stats: StepStats) -> None:
        """Keeps the record until `settle`, or until there are many."""
        self._new_steps.append(stats)
        if len(self._new_steps) >= MAX_UNSETTLED_STEPS:
            self.settle()

    def settle(self) -> None:
        """Counts the steps that were observed since; to be called before metrics are read."""
        steps, self._new_steps = self._new_steps, []
        if not steps:
            return
        for number, engine in enumerate(self.engines):
            engine.count([stats for stats in steps if replica_of(stats.step_id) == number])

    def requests_of(self, step_id: int) -> RequestMetrics:
        """Of the engine that made a step; of the first one where there was none (below 0)."""
        return self.requests[max(replica_of(step_id), 0)]

    def observe_gaps(self, gaps_ns: npt.NDArray[np.int64], step_ids: npt.NDArray[np.int64]) -> None:
        """int64 `[num_gaps]`, and the steps that ended them."""
        engines = np.maximum(step_ids // STEPS_PER_REPLICA, 0)
        for number, requests in enumerate(self.requests):
            requests.observe_gaps(gaps_ns[engines == number])

    def observe_refusal(self, reason: str) -> None:
        """A request was not let in."""
        self._refused.labels(*self._labels.values(), reason).inc()

    def observe_idempotent(self, outcome: str) -> None:
        """A request with a key: executed, joined, replayed or mismatch."""
        self._idempotent.labels(*self._labels.values(), outcome).inc()

    def set_idle(self) -> None:
        """After an engine's death, or when nobody is being answered: nothing runs or is held."""
        self.settle()
        for engine in self.engines:
            engine.set_idle()

    def watch_ledger(self, ledger: Ledger) -> None:
        """Shows the ledger's totals too; whoever reads the metrics settles it before."""
        LedgerMetrics(ledger, self.registry, **self._labels)

    def watch_in_flight(self, count: Callable[[], int]) -> None:
        """Where the number of HTTP requests being answered is read when the metrics are."""
        self._in_flight.set_function(lambda: float(count()))

    def watch_idempotency(self, num_bytes: Callable[[], int]) -> None:
        self._idempotency_bytes.set_function(lambda: float(num_bytes()))

    def _gauge(self, name: str, documentation: str) -> Gauge:
        family = Gauge(f"takt_{name}", documentation, list(self._labels), registry=self.registry)
        return family.labels(*self._labels.values())
