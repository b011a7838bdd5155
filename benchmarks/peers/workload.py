"""The parts of the comparison, the same for every engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.peers.engine import Engine, Timeline
from benchmarks.percentile import percentile

NUM_PROMPT, NUM_OUTPUT = 400, 128
NUM_PREFILL = 512
MANY_STREAMS = 32
CONTEXT_TOKENS = 640
"""Room for any request."""

PARTS = ("one_stream", "prefill", "many_streams")


class Prompts:
    """Token ids that no engine has seen: each call makes new ones; the seed makes them again."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._rng = random.Random(f"peers-{seed}")
        self._vocab_size = vocab_size

    def make(self, count: int, num_tokens: int) -> list[list[int]]:
        # The first ids of a vocabulary are special tokens.
        low, high = 1000, self._vocab_size
        return [[self._rng.randrange(low, high) for _ in range(num_tokens)] for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Size:
    """Requests of one slice."""

    num_one_stream: int
    num_prefill: int
    num_many: int
    num_output: int = NUM_OUTPUT


FULL = Size(num_one_stream=4, num_prefill=6, num_many=64)
SWEEP = Size(num_one_stream=2, num_prefill=3, num_many=32, num_output=64)
QUICK = Size(num_one_stream=1, num_prefill=1, num_many=8, num_output=16)


def run_part(part: str, engine: Engine, prompts: Prompts, size: Size) -> list[Timeline]:
    """One slice, behind a short request that warms up what has been paused."""
    engine.run(prompts.make(1, 64), 1, 8)
    if part == "one_stream":
        return engine.run(prompts.make(size.num_one_stream, NUM_PROMPT), 1, size.num_output)
    if part == "prefill":
        # Two tokens: an engine may end a request of one without a decode step to batch with.
        return engine.run(prompts.make(size.num_prefill, NUM_PREFILL), 1, 2)
    return engine.run(prompts.make(size.num_many, NUM_PROMPT), MANY_STREAMS, size.num_output)


def score(part: str, slices: Sequence[Sequence[Timeline]]) -> dict[str, float]:
    """The figures of a part from all its slices."""
    timelines = [timeline for one in slices for timeline in one]
    if part == "prefill":
        ttft_s = [(t.stamps_ns[0] - t.start_ns) / 1e9 for t in timelines]
        return {"tokens_per_s": NUM_PREFILL / float(np.median(ttft_s))}
    gaps = np.concatenate([np.diff(t.stamps_ns) for t in timelines]) / 1e6
    figures = {
        "p50_ms": percentile(gaps, 50),
        "p99_ms": percentile(gaps, 99),
        "largest_gap_ms": float(gaps.max()),
        "hit_rate": sum(t.num_cached_tokens for t in timelines) / (NUM_PROMPT * len(timelines)),
    }
    if part == "many_streams":
        seconds = sum(_makespan_s(one) for one in slices)
        num_output = sum(len(t.stamps_ns) for t in timelines)
        figures["total_tokens_per_s"] = (NUM_PROMPT * len(timelines) + num_output) / seconds
        figures["output_tokens_per_s"] = num_output / seconds
    return figures


def merit(part: str, figures: dict[str, float]) -> float:
    """What the best settings are chosen by; higher is better."""
    if part == "one_stream":
        return -figures["p50_ms"]
    return figures["tokens_per_s" if part == "prefill" else "total_tokens_per_s"]


def _makespan_s(timelines: Sequence[Timeline]) -> float:
    first = min(t.start_ns for t in timelines)
    return (max(int(t.stamps_ns[-1]) for t in timelines) - first) / 1e9
