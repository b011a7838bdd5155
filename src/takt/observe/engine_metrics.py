"""Metrics of the engines behind a server: what their steps did, and what they hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from takt.observe.histogram import HistogramFamily

NS_PER_SECOND = 1_000_000_000

LATENCY_BUCKETS_SECONDS = tuple(0.00025 * 2**i for i in range(20))
"""0.25 ms to 131 s, each twice the one before: a tail is seen at every scale."""

TOKEN_BUCKETS = tuple(2**i for i in range(18))


class ModelError(Protocol):
    """What the step-time model says about itself."""

    @property
    def mean_error(self) -> float: ...

    @property
    def covered(self) -> float: ...


class StepStats(Protocol):
    """What the metrics read of one step's record; times are of one monotonic clock."""

    step_id: int
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
    num_offloaded_blocks: int
    num_restored_blocks: int

    @property
    def load(self) -> ModelError | None: ...


class EngineFamilies:
    """The metrics that each engine has a series of."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.queue_time = self._histogram(
            "request_queue_time_seconds",
            "Arrival at the engine to the first step.",
            LATENCY_BUCKETS_SECONDS,
        )
        self.step_time = self._histogram(
            "step_time_seconds", "A step, from decision to message.", LATENCY_BUCKETS_SECONDS
        )
        self.step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens of a step.", TOKEN_BUCKETS
        )
        c, g = self._counter, self._gauge
        self.prefix_queries = c("prefix_cache_queries", "Tokens asked of the prefix cache.")
        self.prefix_hits = c("prefix_cache_hits", "Tokens the prefix cache had.")
        self.preemptions = c("num_preemptions", "Requests that lost their place in a step.")
        self.redone_tiles = c("redone_tiles", "Tiles computed again for a thread that stood still.")
        self.depth_changes = c(
            "pipeline_depth_changes", "Times that the number of steps in flight was changed."
        )
        self.blocks_offloaded = c("kv_blocks_offloaded", "KV blocks copied to host memory.")
        self.blocks_restored = c("kv_blocks_restored", "KV blocks copied back from host memory.")
        self.restarts = _GivenCounter(
            "engine_restarts", "Engine processes started in place of a dead one.", registry
        )
        self.offloaded = _GivenCounter(
            "requests_offloaded", "Requests given to another replica for want of memory.", registry
        )
        self.model_error = g(
            "step_time_prediction_error_ratio",
            "Mean of |measured / predicted - 1| over the last steps, each predicted before it ran.",
        )
        self.model_covered = g(
            "step_time_prediction_p99_covered_ratio",
            "Share of the last steps within their predicted P99.",
        )
        self.running = g("num_requests_running", "Sequences in the running batch.")
        self.waiting = g("num_requests_waiting", "Requests that wait.")
        self.waiting_by_reason = g(
            "num_requests_waiting_by_reason", "Requests that wait, by what they wait for.", "reason"
        )
        self.kv_usage = g("kv_cache_usage_perc", "KV blocks in use; 1 is all of them.")
        self.depth = g("pipeline_depth", "Steps that are in flight at most, now.")
        self.kv_unwritten = g(
            "kv_cache_unwritten_perc",
            "KV reserved for requests and not written yet, sampled where the depth of a pipeline "
            "follows it; 1 is the whole pool.",
        )
        self.engine_info = g(
            "engine_info", "1; its label names the precision policy in use.", "precision"
        )
        self.cache_info = g(
            "cache_config_info",
            "The KV cache of an engine: 1, with its type and sizes as labels. block_bytes are K "
            "and V of a block of all layers of a KV group; groups are separated by commas.",
            "cache_dtype",
            "block_size",
            "num_blocks",
            "block_bytes",
        )

    def _histogram(
        self, name: str, documentation: str, buckets: Sequence[float]
    ) -> HistogramFamily:
        return HistogramFamily(f"takt_{name}", documentation, _LABELS, buckets, self._registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"takt_{name}", documentation, _LABELS, registry=self._registry)

    def _gauge(self, name: str, documentation: str, *more_labels: str) -> Gauge:
        labels = [*_LABELS, *more_labels]
        return Gauge(f"takt_{name}", documentation, labels, registry=self._registry)


class EngineMetrics:
    """One engine's series."""

    def __init__(self, families: EngineFamilies, model_name: str, engine: str) -> None:
        labels = (model_name, engine)
        self._families, self._labels = families, labels
        self._queue_time = families.queue_time.labels(*labels)
        self._step_time = families.step_time.labels(*labels)
        self._step_tokens = families.step_tokens.labels(*labels)
        self._prefix_queries = families.prefix_queries.labels(*labels)
        self._prefix_hits = families.prefix_hits.labels(*labels)
        self._preemptions = families.preemptions.labels(*labels)
        self._redone_tiles = families.redone_tiles.labels(*labels)
        self._depth_changes = families.depth_changes.labels(*labels)
        self._depth = families.depth.labels(*labels)
        self._kv_unwritten = families.kv_unwritten.labels(*labels)
        self._last_depth: int | None = None
        self._blocks_offloaded = families.blocks_offloaded.labels(*labels)
        self._blocks_restored = families.blocks_restored.labels(*labels)
        self._model_error = families.model_error.labels(*labels)
        self._model_covered = families.model_covered.labels(*labels)
        self._running = families.running.labels(*labels)
        self._waiting = families.waiting.labels(*labels)
        self._waiting_capacity = families.waiting_by_reason.labels(*labels, "capacity")
        self._waiting_turn = families.waiting_by_reason.labels(*labels, "turn")
        self._kv_usage = families.kv_usage.labels(*labels)
        self._info: tuple[str, ...] = ()
        self._cache_info: tuple[str, ...] = ()
        self.set_totals(num_restarts=0, num_offloaded=0)

    def count(self, steps: Sequence[StepStats]) -> None:
        """Counts steps, oldest first, and shows the state that the last one left."""
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
        self._blocks_offloaded.inc(sum(stats.num_offloaded_blocks for stats in steps))
        self._blocks_restored.inc(sum(stats.num_restored_blocks for stats in steps))
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

    def set_idle(self) -> None:
        """Nothing runs or is held."""
        for gauge in (
            self._running,
            self._waiting,
            self._waiting_capacity,
            self._waiting_turn,
            self._kv_usage,
            self._kv_unwritten,
        ):
            gauge.set(0)

    def set_info(self, precision: str) -> None:
        """What the engine computes in; a constant 1 whose label says it."""
        labels = (*self._labels, precision)
        if self._info not in ((), labels):
            self._families.engine_info.remove(*self._info)
        self._info = labels
        self._families.engine_info.labels(*labels).set(1)

    def set_cache(
        self, dtype: str, block_size: int, num_blocks: Sequence[int], block_bytes: Sequence[int]
    ) -> None:
        """The KV cache of a started engine; blocks and their bytes by KV group."""
        groups = [",".join(map(str, values)) for values in (num_blocks, block_bytes)]
        labels = (*self._labels, dtype, str(block_size), *groups)
        if self._cache_info not in ((), labels):
            self._families.cache_info.remove(*self._cache_info)
        self._cache_info = labels
        self._families.cache_info.labels(*labels).set(1)

    def set_totals(self, *, num_restarts: int, num_offloaded: int) -> None:
        """Processes started in place of a dead one, and requests given to others, so far."""
        self._families.restarts.counts[self._labels] = num_restarts
        self._families.offloaded.counts[self._labels] = num_offloaded


class _GivenCounter(Collector):
    """A counter whose owners say how far it is."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self.counts: dict[tuple[str, str], int] = {}
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, count in self.counts.items():
            family.add_metric(list(labels), count)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(f"takt_{self._name}", self._documentation, labels=list(_LABELS))


_LABELS = ("model_name", "engine")
