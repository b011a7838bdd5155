"""The record of a step, made when it is asked for: by then the next step has begun, if it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from takt.engine.messages import StepStats
from takt.engine.runner import StepTokens
from takt.engine.step_buffer import FilledStep
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.output import SchedulerOutput


@dataclass(slots=True)
class StepEnd:
    """What is known of a step at its end, and no longer when the next one has begun."""

    tokens: StepTokens
    scheduled: SchedulerOutput
    schedule_start_ns: int
    update_end_ns: int
    num_kv_tokens_read: int
    num_qk_pairs: int
    after_idle: bool
    """There was no work before it: what passed since the step before was no step's time."""
    pipeline_depth: int
    predicted_ns: float = 0.0
    predicted_p99_ns: float = 0.0


class StepReporter:
    """Makes records of steps, of each at most once and in their order.

    State of the pool and numbers of requests are those of the moment, counts are since the record
    before.
    """

    def __init__(self, scheduler: Scheduler, kv: KVCacheManager) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self.total_gc_ns: Callable[[], int] = int
        """Where the time that garbage collection has taken in this process is read."""
        self._reported_gc_ns = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0
        self._num_offloaded_blocks = 0
        self._num_restored_blocks = 0

    def report(self, end: StepEnd) -> StepStats:
        tokens, scheduled, scheduler = end.tokens, end.scheduled, self._scheduler
        queries, hits = scheduler.prefix_cache_queries, scheduler.prefix_cache_hits
        num_running, num_waiting, num_waiting_for_capacity = scheduler.occupancy()
        kv_blocks_used, kv_fullest_share = self._kv.usage()
        gc_ns = self.total_gc_ns()
        new_gc_ns, self._reported_gc_ns = gc_ns - self._reported_gc_ns, gc_ns
        stats = StepStats(
            step_id=scheduled.step_id,
            schedule_start_ns=end.schedule_start_ns,
            run_start_ns=tokens.run_start_ns,
            run_end_ns=tokens.run_end_ns,
            update_end_ns=end.update_end_ns,
            num_decode_seqs=scheduled.num_decodes,
            num_prefill_tokens=scheduled.num_prefill_tokens,
            num_kv_tokens_read=end.num_kv_tokens_read,
            num_qk_pairs=end.num_qk_pairs,
            num_running=num_running,
            num_waiting=num_waiting,
            num_waiting_for_capacity=num_waiting_for_capacity,
            kv_blocks_used=kv_blocks_used,
            kv_blocks_total=self._kv.num_total_blocks,
            prefix_cache_queries=queries - self._prefix_cache_queries,
            prefix_cache_hits=hits - self._prefix_cache_hits,
            num_preempted=len(scheduled.preempted),
            queue_times_ns=_queue_times_ns(tokens.filled, end.schedule_start_ns)
            if scheduled.prompts
            else [],
            num_redone_tiles=tokens.num_redone_tiles,
            predicted_ns=round(end.predicted_ns),
            predicted_p99_ns=round(end.predicted_p99_ns),
            num_decode_kv_tokens=scheduled.num_decode_kv_tokens,
            stolen_run_ns=tokens.stolen_run_ns,
            stolen_host_ns=0 if end.after_idle else tokens.stolen_host_ns,
            gc_ns=0 if end.after_idle else new_gc_ns,
            pipeline_depth=end.pipeline_depth,
            computed_ns=tokens.computed_ns,
            kv_fullest_share=kv_fullest_share,
        )
        self._prefix_cache_queries, self._prefix_cache_hits = queries, hits
        if scheduled.preempted:
            stats.preempted_ids = [request.request_id for request in scheduled.preempted]
        host = self._kv.host
        if host is not None:
            stats.num_offloaded_blocks = host.num_offloaded_blocks - self._num_offloaded_blocks
            stats.num_restored_blocks = host.num_restored_blocks - self._num_restored_blocks
            self._num_offloaded_blocks = host.num_offloaded_blocks
            self._num_restored_blocks = host.num_restored_blocks
        return stats


def _queue_times_ns(filled: FilledStep, start_ns: int) -> list[int]:
    return [
        start_ns - request.arrival_ns
        for request in filled.newly_seated
        if request.first_scheduled_ns == start_ns
    ]
