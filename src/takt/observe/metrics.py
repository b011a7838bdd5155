"""Prometheus metrics of one server: names in vLLM's shape under `takt_`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge

from takt.observe.engine_metrics import (
    LATENCY_BUCKETS_SECONDS,
    NS_PER_SECOND,
    EngineFamilies,
    EngineMetrics,
    StepStats,
)
from takt.observe.histogram import Histogram, HistogramFamily
from takt.observe.ledger.ledger import Ledger
from takt.observe.ledger.metrics import LedgerMetrics
from takt.types.step_ids import replica_of

MAX_UNSETTLED_STEPS = 4096


class Metrics:
    """Every metric of a server and its engines, in a registry that is given.

    `observe_step` is fed with each step's record; the server reports tokens and requests, which are
    not told apart by engine.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, num_engines: int = 1) -> None:
        self.registry = registry
        self._labels = {"model_name": model_name, "engine": "0"}
        families = EngineFamilies(registry)
        self.engines = [EngineMetrics(families, model_name, str(i)) for i in range(num_engines)]
        self._new_steps: list[StepStats] = []
        seconds = LATENCY_BUCKETS_SECONDS
        h = self._histogram
        self._ttft = h(
            "time_to_first_token_seconds",
            "Arrival of a request to its first token: written to the socket if streamed, "
            "otherwise known to the server.",
            seconds,
        )
        self._itl = h(
            "inter_token_latency_seconds",
            "Gap between two tokens of a choice, stamped like the first token; one per gap.",
            seconds,
        )
        self._tpot = h(
            "request_time_per_output_token_seconds",
            "Mean gap of a choice; one per choice.",
            seconds,
        )
        self._largest_gap = h(
            "request_largest_token_gap_seconds", "Largest gap of a choice; one per choice.", seconds
        )
        self._e2e = h("e2e_request_latency_seconds", "Arrival of a request to its end.", seconds)
        self._make_counters()
        self._make_gauges()

    def _make_counters(self) -> None:
        c = self._counter
        self._prompt_tokens = c("prompt_tokens", "Prompt tokens of requests that ran.")
        self._generation_tokens = c("generation_tokens", "Tokens generated.")
        self._success = Counter(
            "takt_request_success",
            "Choices that ended, by reason.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(*self._labels.values(), reason)
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

    def observe_first_token(self, elapsed_ns: int) -> None:
        self._ttft.observe(elapsed_ns / NS_PER_SECOND)

    def observe_gaps(self, gaps_ns: npt.NDArray[np.int64]) -> None:
        """int64 `[num_gaps]`."""
        self._itl.observe_many(gaps_ns / NS_PER_SECOND)

    def observe_refusal(self, reason: str) -> None:
        """A request was not let in."""
        self._refused.labels(*self._labels.values(), reason).inc()

    def observe_choice(
        self, *, num_tokens: int, first_ns: int, last_ns: int, largest_gap_ns: int, reason: str
    ) -> None:
        """The end of a choice; times are the stamps of its first and last token.

        One that was cut short has no mean gap: not all of its tokens were written.
        """
        if num_tokens > 1 and reason in ("stop", "length"):
            self._tpot.observe((last_ns - first_ns) / (num_tokens - 1) / NS_PER_SECOND)
            self._largest_gap.observe(largest_gap_ns / NS_PER_SECOND)
        self._success.labels(*self._labels.values(), reason).inc()

    def observe_request(
        self, *, elapsed_ns: int, num_prompt_tokens: int, num_generated_tokens: int
    ) -> None:
        self._e2e.observe(elapsed_ns / NS_PER_SECOND)
        self._prompt_tokens.inc(num_prompt_tokens)
        self._generation_tokens.inc(num_generated_tokens)

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

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        family = HistogramFamily(
            f"takt_{name}", documentation, list(self._labels), buckets, self.registry
        )
        return family.labels(*self._labels.values())

    def _counter(self, name: str, documentation: str) -> Counter:
        family = Counter(f"takt_{name}", documentation, list(self._labels), registry=self.registry)
        return family.labels(*self._labels.values())

    def _gauge(self, name: str, documentation: str) -> Gauge:
        family = Gauge(f"takt_{name}", documentation, list(self._labels), registry=self.registry)
        return family.labels(*self._labels.values())
