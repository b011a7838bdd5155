"""Metrics of requests as their clients saw them, by the engine that served them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter

from takt.observe.engine_metrics import LATENCY_BUCKETS_SECONDS, NS_PER_SECOND
from takt.observe.histogram import HistogramFamily

_LABELS = ("model_name", "engine")
REASONS = ("stop", "length", "abort", "error")


class RequestFamilies:
    """The metrics that the requests of each engine have a series of."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        h, c = self._histogram, self._counter
        self.ttft = h(
            "time_to_first_token_seconds",
            "Arrival of a request to its first token: written to the socket if streamed, "
            "otherwise known to the server.",
        )
        self.itl = h(
            "inter_token_latency_seconds",
            "Gap between two tokens of a choice, stamped like the first token; one per gap.",
        )
        self.tpot = h(
            "request_time_per_output_token_seconds",
            "Mean gap of a choice; one per choice.",
        )
        self.largest_gap = h(
            "request_largest_token_gap_seconds", "Largest gap of a choice; one per choice."
        )
        self.e2e = h("e2e_request_latency_seconds", "Arrival of a request to its end.")
        self.prompt_tokens = c("prompt_tokens", "Prompt tokens of requests that ran.")
        self.generation_tokens = c("generation_tokens", "Tokens generated.")
        self.success = c("request_success", "Choices that ended, by reason.", "finished_reason")

    def _histogram(self, name: str, documentation: str) -> HistogramFamily:
        return HistogramFamily(
            f"takt_{name}", documentation, _LABELS, LATENCY_BUCKETS_SECONDS, self._registry
        )

    def _counter(self, name: str, documentation: str, *more_labels: str) -> Counter:
        labels: Sequence[str] = [*_LABELS, *more_labels]
        return Counter(f"takt_{name}", documentation, labels, registry=self._registry)


class RequestMetrics:
    """The series of one engine's requests."""

    def __init__(self, families: RequestFamilies, model_name: str, engine: str) -> None:
        labels = (model_name, engine)
        self._ttft = families.ttft.labels(*labels)
        self._itl = families.itl.labels(*labels)
        self._tpot = families.tpot.labels(*labels)
        self._largest_gap = families.largest_gap.labels(*labels)
        self._e2e = families.e2e.labels(*labels)
        self._prompt_tokens = families.prompt_tokens.labels(*labels)
        self._generation_tokens = families.generation_tokens.labels(*labels)
        self._success = {reason: families.success.labels(*labels, reason) for reason in REASONS}

    def observe_first_token(self, elapsed_ns: int) -> None:
        self._ttft.observe(elapsed_ns / NS_PER_SECOND)

    def observe_gaps(self, gaps_ns: npt.NDArray[np.int64]) -> None:
        """int64 `[num_gaps]`."""
        self._itl.observe_many(gaps_ns / NS_PER_SECOND)

    def observe_choice(
        self, *, num_tokens: int, first_ns: int, last_ns: int, largest_gap_ns: int, reason: str
    ) -> None:
        """The end of a choice; times are the stamps of its first and last token.

        One that was cut short has no mean gap: not all of its tokens were written.
        """
        if num_tokens > 1 and reason in ("stop", "length"):
            self._tpot.observe((last_ns - first_ns) / (num_tokens - 1) / NS_PER_SECOND)
            self._largest_gap.observe(largest_gap_ns / NS_PER_SECOND)
        self._success[reason].inc()
        self._generation_tokens.inc(num_tokens)

    def observe_prompt(self, num_tokens: int) -> None:
        """A prompt whose choices have ended."""
        self._prompt_tokens.inc(num_tokens)

    def observe_request(self, elapsed_ns: int) -> None:
        """Arrival of a request to its end."""
        self._e2e.observe(elapsed_ns / NS_PER_SECOND)
