"""Prometheus metrics of one server: names in vLLM's shape under `takt_`."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from takt.observe.ledger.ledger import Ledger
from takt.observe.ledger.metrics import LedgerMetrics

NS_PER_SECOND = 1_000_000_000

LATENCY_BUCKETS_SECONDS = tuple(0.00025 * 2**i for i in range(20))
"""0.25 ms to 131 s, each twice the one before: a tail is seen at every scale."""

MAX_UNSETTLED_STEPS = 4096

TOKEN_BUCKETS = tuple(2**i for i in range(18))


class ModelError(Protocol):
    """What the step-time model says about itself."""

    @property
    def mean_error(self) -> float: ...

    @property
    def covered(self) -> float: ...


class StepStats(Protocol):
    """What the metrics read of one step's record; times are of one monotonic clock."""

    schedule_start_ns: int
    update_end_ns: int
    num_decode_seqs: int
    num_prefill_tokens: int
    num_running: int
    num_waiting: int
    num_waiting_for_capacity: int
    kv_blocks_used: int
    kv_blocks_total: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preempted: int
    queue_times_ns: list[int]
    num_redone_tiles: int
    pipeline_depth: int
    kv_unwritten_permille: int

    @property
    def load(self) -> ModelError | None: ...


class Histogram(Collector):
    """A histogram with one writer: an observation is a bisection and two additions, no lock."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: dict[str, str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = list(buckets)
        self._bound_names = [*(str(float(b)) for b in buckets), "+Inf"]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_many(self, values: npt.NDArray[np.float64]) -> None:
        """float64 `[num_values]`."""
        places = np.searchsorted(self._bounds, values)
        for place, count in enumerate(np.bincount(places, minlength=len(self._counts)).tolist()):
            self._counts[place] += count
        self._sum += float(values.sum())

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        cumulative, total = [], 0
        for bound, count in zip(self._bound_names, self._counts, strict=True):
            total += count
            cumulative.append((bound, float(total)))
        family.add_metric(list(self._labels.values()), cumulative, self._sum)
        yield family


class _RestartCounter(Collector):
    """A counter that its owner keeps."""

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self._labels = labels
        self.count: Callable[[], int] = int
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        family.add_metric(list(self._labels.values()), self.count())
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(
            "takt_engine_restarts",
            "Engine processes started in place of a dead one.",
            labels=list(self._labels),
        )


class Metrics:
    """Every metric of a server and its engine, in a registry that is given.

    `observe_step` is fed with each step's record; the server reports tokens and requests.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, engine: str = "0") -> None:
        self.registry = registry
        self._labels = {"model_name": model_name, "engine": engine}
        self._new_steps: list[StepStats] = []
        self._last_depth: int | None = None
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
        self._queue_time = h(
            "request_queue_time_seconds", "Arrival at the engine to the first step.", seconds
        )
        self._step_time = h("step_time_seconds", "A step, from decision to message.", seconds)
        self._step_tokens = h("iteration_tokens_total", "Tokens of a step.", TOKEN_BUCKETS)
        self._make_counters()
        self._make_gauges()

    def _make_counters(self) -> None:
        c = self._counter
        self._prompt_tokens = c("prompt_tokens", "Prompt tokens of requests that ran.")
        self._generation_tokens = c("generation_tokens", "Tokens generated.")
        self._prefix_queries = c("prefix_cache_queries", "Tokens asked of the prefix cache.")
        self._prefix_hits = c("prefix_cache_hits", "Tokens the prefix cache had.")
        self._preemptions = c("num_preemptions", "Requests that lost their place in a step.")
        self._redone_tiles = c(
            "redone_tiles", "Tiles computed again for a thread that stood still."
        )
        self._depth_changes = c(
            "pipeline_depth_changes", "Times that the number of steps in flight was changed."
        )
        self._restarts = _RestartCounter(self._labels, self.registry)
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
        self._model_error = g(
            "step_time_prediction_error_ratio",
            "Mean of |measured / predicted - 1| over the last steps, each predicted before it ran.",
        )
        self._model_covered = g(
            "step_time_prediction_p99_covered_ratio",
            "Share of the last steps within their predicted P99.",
        )
        self._running = g("num_requests_running", "Sequences in the running batch.")
        self._waiting = g("num_requests_waiting", "Requests that wait.")
        self._in_flight = g("http_requests_in_flight", "HTTP requests being answered.")
        self._idempotency_bytes = g(
            "idempotency_kept_bytes", "Answers kept for requests that come again with their key."
        )
        self._kv_usage = g("kv_cache_usage_perc", "KV blocks in use; 1 is all of them.")
        self._depth = g("pipeline_depth", "Steps that are in flight at most, now.")
        self._kv_unwritten = g(
            "kv_cache_unwritten_perc",
            "KV reserved for requests and not written yet, sampled where the depth of a pipeline "
            "follows it; 1 is the whole pool.",
        )
        self._engine_info = Gauge(
            "takt_engine_info",
            "1; its label names the precision policy in use.",
            [*self._labels, "precision"],
            registry=self.registry,
        )
        self._cache_info = Gauge(
            "takt_cache_config_info",
            "The KV cache of an engine: 1, with its type and sizes as labels. block_bytes are K "
            "and V of a block of all layers of a KV group; groups are separated by commas.",
            [*self._labels, "cache_dtype", "block_size", "num_blocks", "block_bytes"],
            registry=self.registry,
        )
        by_reason = Gauge(
            "takt_num_requests_waiting_by_reason",
            "Requests that wait, by what they wait for.",
            [*self._labels, "reason"],
            registry=self.registry,
        )
        self._waiting_capacity = by_reason.labels(*self._labels.values(), "capacity")
        self._waiting_turn = by_reason.labels(*self._labels.values(), "turn")

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
        for stats in steps:
            self._step_time.observe((stats.update_end_ns - stats.schedule_start_ns) / NS_PER_SECOND)
            self._step_tokens.observe(stats.num_decode_seqs + stats.num_prefill_tokens)
            for queue_time_ns in stats.queue_times_ns:
                self._queue_time.observe(queue_time_ns / NS_PER_SECOND)
        self._prefix_queries.inc(sum(stats.prefix_cache_queries for stats in steps))
        self._prefix_hits.inc(sum(stats.prefix_cache_hits for stats in steps))
        self._preemptions.inc(sum(stats.num_preempted for stats in steps))
        self._redone_tiles.inc(sum(stats.num_redone_tiles for stats in steps))
        depths = [self._last_depth or steps[0].pipeline_depth]
        depths += [stats.pipeline_depth for stats in steps]
        self._depth_changes.inc(sum(a != b for a, b in itertools.pairwise(depths)))
        self._last_depth = depths[-1]
        self._show_state(steps[-1])

    def _show_state(self, stats: StepStats) -> None:
        if stats.load is not None:
            self._model_error.set(stats.load.mean_error)
            self._model_covered.set(stats.load.covered)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._waiting_capacity.set(stats.num_waiting_for_capacity)
        self._waiting_turn.set(max(stats.num_waiting - stats.num_waiting_for_capacity, 0))
        self._depth.set(stats.pipeline_depth)
        self._kv_unwritten.set(stats.kv_unwritten_permille / 1000)
        if stats.kv_blocks_total:
            self._kv_usage.set(stats.kv_blocks_used / stats.kv_blocks_total)

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

    def set_engine_info(self, precision: str) -> None:
        """What the engine computes in; a constant 1 whose label says it."""
        self._engine_info.labels(*self._labels.values(), precision).set(1)

    def set_idle(self) -> None:
        """After an engine's death, or when nobody is being answered: nothing runs or is held."""
        self.settle()
        for gauge in (
            self._running,
            self._waiting,
            self._waiting_capacity,
            self._waiting_turn,
            self._kv_usage,
            self._kv_unwritten,
        ):
            gauge.set(0)

    def watch_ledger(self, ledger: Ledger) -> None:
        """Shows the ledger's totals too; whoever reads the metrics settles it before."""
        LedgerMetrics(ledger, self.registry, **self._labels)

    def set_cache(
        self, dtype: str, block_size: int, num_blocks: Sequence[int], block_bytes: Sequence[int]
    ) -> None:
        """The KV cache of a started engine; blocks and their bytes by KV group."""
        self._cache_info.clear()
        groups = [",".join(map(str, values)) for values in (num_blocks, block_bytes)]
        self._cache_info.labels(*self._labels.values(), dtype, block_size, *groups).set(1)

    def watch_in_flight(self, count: Callable[[], int]) -> None:
        """Where the number of HTTP requests being answered is read when the metrics are."""
        self._in_flight.set_function(lambda: float(count()))

    def watch_idempotency(self, num_bytes: Callable[[], int]) -> None:
        self._idempotency_bytes.set_function(lambda: float(num_bytes()))

    def watch_engine_restarts(self, count: Callable[[], int]) -> None:
        """Likewise for the engine processes started in place of a dead one."""
        self._restarts.count = count

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"takt_{name}", documentation, self._labels, buckets, self.registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        family = Counter(f"takt_{name}", documentation, list(self._labels), registry=self.registry)
        return family.labels(*self._labels.values())

    def _gauge(self, name: str, documentation: str) -> Gauge:
        family = Gauge(f"takt_{name}", documentation, list(self._labels), registry=self.registry)
        return family.labels(*self._labels.values())
