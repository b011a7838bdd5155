"""Runs a trace through the scheduler and the pool, and records what happens to KV memory."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from benchmarks.kv.trace import TraceRequest

from takt.config import CacheOptions, SchedulerOptions
from takt.kvcache.manager import KVCacheManager
from takt.kvcache.sizing import blocks_for_tokens
from takt.scheduler.create import create_scheduler
from takt.scheduler.request import Request
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.sampling_params import SamplingParams

SPEC = KVCacheSpec(
    groups=(KVGroupSpec(tuple(range(30)), None),),
    num_kv_heads=3,
    head_dim=64,
    block_size=16,
    dtype=KVDtype.BF16,
)
"""SmolLM2-135M: 23,040 bytes of KV for a token."""

TOKEN_BYTES = SPEC.block_bytes(0) // SPEC.block_size


@dataclass(slots=True)
class StepEvents:
    """KV memory of one step: `grown[i] = (index, length)`, then who ends with the step."""

    grown: list[tuple[int, int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Recording:
    """All steps, and per step the pool's blocks in use and the slots of them that are written."""

    steps: list[StepEvents] = field(default_factory=list)
    used_blocks: list[int] = field(default_factory=list)
    written_slots: list[int] = field(default_factory=list)
    num_running: list[int] = field(default_factory=list)
    schedule_ns: list[int] = field(default_factory=list)
    """`schedule` and `update` of each step, together."""
    num_prompt_tokens: int = 0
    num_hit_tokens: int = 0
    hits: dict[int, int] = field(default_factory=dict)
    """Cached tokens of each request."""
    starts: list[int] = field(default_factory=list)
    """Requests in the order in which they were first scheduled."""


def record(
    trace: list[TraceRequest], *, num_blocks: int, max_num_seqs: int, enable_prefix_caching: bool
) -> Recording:
    """Runs the trace to its end; one step takes one unit of the trace's time."""
    kv = KVCacheManager(
        SPEC, [num_blocks], enable_prefix_caching, max_num_seqs=max_num_seqs, max_model_len=2048
    )
    scheduler = create_scheduler(
        SchedulerOptions(max_num_seqs=max_num_seqs), CacheOptions(), kv, max_model_len=2048
    )
    indices: dict[Request, int] = {}
    running: dict[Request, None] = {}
    arrivals = deque(enumerate(trace))
    recording = Recording()
    now = 0
    while arrivals or scheduler.has_work:
        while arrivals and arrivals[0][1].arrival_step <= now:
            index, wanted = arrivals.popleft()
            request = _request(index, wanted, now)
            indices[request] = index
            scheduler.add(request)
        now += 1
        start = time.perf_counter_ns()
        output = scheduler.schedule(now)
        scheduled = time.perf_counter_ns()
        if output.is_empty:
            continue
        sampled = [
            _token(indices[item.request], item.start) for item in output.scheduled if item.samples
        ]
        events = StepEvents()
        for item in output.scheduled:
            index = indices[item.request]
            running[item.request] = None
            if index not in recording.hits:
                recording.hits[index] = item.request.num_cached_tokens
                recording.starts.append(index)
            events.grown.append((index, item.start + item.num_tokens))
        used = kv.num_used_blocks
        slack = sum(_slack(request) for request in running)
        recording.used_blocks.append(used)
        recording.written_slots.append(used * SPEC.block_size - slack)
        recording.num_running.append(scheduler.num_running)
        resumed = time.perf_counter_ns()
        finished = scheduler.update(output, sampled)
        recording.schedule_ns.append(scheduled - start + time.perf_counter_ns() - resumed)
        events.ended = [indices[end.request] for end in finished]
        for end in finished:
            del running[end.request]
        recording.steps.append(events)
    recording.num_prompt_tokens = scheduler.prefix_cache_queries
    recording.num_hit_tokens = scheduler.prefix_cache_hits
    if kv.num_used_blocks:
        raise SystemExit(f"{kv.num_used_blocks} blocks did not come back")
    return recording


def shareable_tokens(trace: list[TraceRequest], starts: list[int]) -> int:
    """Prompt tokens that a cache which never forgets could share, whole blocks of them.

    Each prompt is looked up among those that started before it.
    """
    seen: set[tuple[int, ...]] = set()
    shareable = 0
    size = SPEC.block_size
    for index in starts:
        prompt = trace[index].prompt(index)
        for end in range(size, len(prompt), size):
            block = tuple(prompt[:end])
            if block in seen:
                shareable += size
            seen.add(block)
    return shareable


def _request(index: int, wanted: TraceRequest, now: int) -> Request:
    return Request(
        request_id=str(index),
        prompt_token_ids=wanted.prompt(index),
        sampling=SamplingParams(max_tokens=wanted.num_output_tokens, ignore_eos=True),
        max_tokens=wanted.num_output_tokens,
        stop_token_ids=frozenset(),
        arrival_ns=now,
    )


def _token(index: int, position: int) -> int:
    return 10_000_000 + index * 2000 + position


def _slack(request: Request) -> int:
    """Slots of a sequence's last block that no token is written to at the end of the step."""
    num_written = request.num_computed_tokens
    return blocks_for_tokens(num_written, SPEC.block_size) * SPEC.block_size - num_written
