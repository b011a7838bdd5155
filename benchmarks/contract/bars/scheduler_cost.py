"""Scheduling and updating a step with 256 running requests, in microseconds."""

from __future__ import annotations

import time

import numpy as np
from benchmarks.contract.cost import Run
from benchmarks.contract.session import Session
from benchmarks.cpu.bar import BarResult, Figure

from takt.config import CacheOptions, SchedulerOptions
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.create import create_scheduler
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.request import Request
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.sampling_params import SamplingParams

NUM_RUNNING = 256
APART_NS = 100_000_000
"""Between two arrivals: more than what the length of a prompt weighs."""
MODEL = StepTimeModel(
    (StepCoefficients(3e6, 4e4, 0, 0, 0), StepCoefficients(5e5, 1e5, 2e5, 0, 0)),
    residual_ratios=(1.0,) * 500,
)

FULL_AT_256_MS = 28.37
"""Of this, 0.95 x is 26.95 ms: 256 decodes and 4 tokens of a prompt take 26.9, one more 27.0."""


def measure(session: Session) -> BarResult:
    num_steps = 200 if session.is_quick else 2000
    figures, details = [], {}
    for name, num_prompts, max_seqs, itl_ms in (
        ("decodes", 0, NUM_RUNNING, 100.0),
        ("decodes and prompts", 64, NUM_RUNNING + 8, 100.0),
        ("decodes, prompts that may not join", 64, NUM_RUNNING + 8, FULL_AT_256_MS),
    ):
        times = _run(num_steps, num_prompts, max_seqs, itl_ms)
        figures.append(Figure(f"{name}, P50", float(np.percentile(times, 50)), "us", 250.0))
        details[f"{name}, P99 us"] = float(np.percentile(times, 99))
    return BarResult(figures, details)


def runs(session: Session) -> list[Run]:
    return [Run("no server", session.seconds(10.0, 2.0))]


def _run(num_steps: int, num_prompts: int, max_seqs: int, itl_ms: float) -> list[float]:
    """Microseconds of `schedule` and `update` of each step; the clock of the scheduler stands."""
    options = SchedulerOptions(max_num_seqs=max_seqs, slo_itl_p99_ms=itl_ms, slo_ttft_p99_ms=3000.0)
    spec = KVCacheSpec((KVGroupSpec((0,), None),), 1, 1, 16, KVDtype.BF16)
    kv = KVCacheManager(spec, [80_000], True, max_num_seqs=max_seqs, max_model_len=8192)
    learned = LearnedStepTime(MODEL)
    scheduler = create_scheduler(options, CacheOptions(), kv, 8192, predictor=learned)
    for index in range(NUM_RUNNING):
        # Of all lengths, so that each step has its share of sequences that begin a block. They come
        # one after the other: all at once, they would go by length, and be aligned by that.
        prompt = [index + 1] + [2] * (3 + index % 16)
        scheduler.add(_request(f"r{index}", prompt, num_steps + 600, index * APART_NS))
    for index in range(num_prompts):
        scheduler.add(_request(f"p{index}", [9] * 4000, 1, (NUM_RUNNING + 100) * APART_NS))
    now_ns, times = 0, []
    while len(times) < num_steps:
        if now_ns > 1000 * (num_steps + 1000):
            raise RuntimeError(f"{scheduler.num_running} requests run, not {NUM_RUNNING}")
        begin = time.perf_counter_ns()
        output = scheduler.schedule(now_ns)
        scheduled = time.perf_counter_ns()
        sampled = [5] * output.num_sampled
        resumed = time.perf_counter_ns()
        scheduler.update(output, sampled)
        end = time.perf_counter_ns()
        num_decodes = output.total_num_scheduled_tokens - output.num_prefill_tokens
        features = StepFeatures(num_decodes, output.num_prefill_tokens, 0, 0)
        now_ns += 1000
        scheduler.observe(features, 1000, now_ns)
        if num_decodes >= NUM_RUNNING:
            times.append((end - resumed + scheduled - begin) / 1000)
    return times


def _request(name: str, prompt: list[int], max_tokens: int, arrival_ns: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens),
        max_tokens=max_tokens,
        stop_token_ids=frozenset(),
        arrival_ns=arrival_ns,
    )
