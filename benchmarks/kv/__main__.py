"""The KV pool on one trace of requests: waste, memory, prefix hits, and the time it takes.

    python -m benchmarks.kv [--json FILE]

1. The trace runs through the scheduler and the pool: waste is (allocated - written) / allocated,
   sampled in every step; the hit rate is that of prompt tokens, with the prefix cache and without,
   beside the most that any cache could share, and beside contiguous slots that keep their last
   text, each request in the free slot whose text begins most like its prompt.
2. The same steps are replayed on the pool and on three other ways to hold KV memory. Internal waste
   is room that is allocated and not written, external what holes between allocations add.

All is run several times, and of each allocation and each step the least time counts: the work is
the same each time, so what is left out is other processes' share of the machine. Percentiles are
over the allocations and over the steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.kv import trace as trace_file
from benchmarks.kv.steps import SPEC, TOKEN_BYTES, Recording, record, shareable_tokens
from benchmarks.kv.strategies import (
    ContiguousSlots,
    DoublingBuffers,
    KVStrategy,
    MallocPerRequest,
    PagedPool,
)
from benchmarks.kv.trace import TraceRequest
from rich.console import Console
from rich.table import Table

MAX_NUM_SEQS = 64
NUM_BLOCKS = 4096


@dataclass(frozen=True, slots=True)
class PoolResult:
    num_requests: int
    num_steps: int
    mean_running: float
    mean_waste: float
    max_waste: float
    hit_rate: float
    hit_rate_without_cache: float
    hit_rate_contiguous: float
    hit_rate_ceiling: float
    schedule_p50_us: float
    schedule_p99_us: float


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """Fractions are of sums over all steps; times are in microseconds."""

    name: str
    peak_mib: float
    internal_waste: float
    external_waste: float
    allocation_p50_us: float
    allocation_p99_us: float
    step_p50_us: float
    step_p99_us: float


@dataclass(slots=True)
class Replay:
    """Sums over all steps, in tokens, and the time of each allocation and each step."""

    name: str
    written: int = 0
    allocated: int = 0
    extent: int = 0
    peak: int = 0
    allocation_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)


def measure_pool(
    trace: list[TraceRequest], cached: Recording, schedule_ns: list[int]
) -> PoolResult:
    uncached = record(
        trace,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=MAX_NUM_SEQS,
        enable_prefix_caching=False,
    )
    allocated = np.array(cached.used_blocks) * SPEC.block_size
    waste = allocated - np.array(cached.written_slots)
    asked = cached.num_prompt_tokens
    p50, p99 = percentiles(schedule_ns)
    return PoolResult(
        num_requests=len(trace),
        num_steps=len(cached.steps),
        mean_running=float(np.mean(cached.num_running)),
        mean_waste=float(waste.sum() / allocated.sum()),
        max_waste=float((waste / np.maximum(allocated, 1)).max()),
        hit_rate=cached.num_hit_tokens / asked,
        hit_rate_without_cache=uncached.num_hit_tokens / asked,
        hit_rate_contiguous=contiguous_hits(trace, cached) / asked,
        hit_rate_ceiling=shareable_tokens(trace, cached.starts) / asked,
        schedule_p50_us=p50,
        schedule_p99_us=p99,
    )


def contiguous_hits(trace: list[TraceRequest], recording: Recording) -> int:
    """Prompt tokens that `MAX_NUM_SEQS` slots share when each keeps the text it held last."""
    texts: list[list[int]] = [[] for _ in range(MAX_NUM_SEQS)]
    free = list(range(MAX_NUM_SEQS))  # least recently used first
    slot_of: dict[int, int] = {}
    hits = 0
    for step in recording.steps:
        for index, _ in step.grown:
            if index in slot_of:
                continue
            prompt = trace[index].prompt(index)
            shared = [common_prefix(texts[slot], prompt) for slot in free]
            best = int(np.argmax(shared))
            hits += min(shared[best], len(prompt) - 1)
            slot = slot_of[index] = free.pop(best)
            texts[slot] = prompt
        free += [slot_of[index] for index in step.ended]
    return hits


def common_prefix(left: list[int], right: list[int]) -> int:
    for length, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return length
    return min(len(left), len(right))


def measure_strategy(
    make: Callable[[], KVStrategy], recording: Recording, num_repeats: int
) -> StrategyResult:
    runs = [replay(make(), recording) for _ in range(num_repeats)]
    allocation_p50, allocation_p99 = percentiles(least([run.allocation_ns for run in runs]))
    step_p50, step_p99 = percentiles(least([run.step_ns for run in runs]))
    memory = runs[0]
    return StrategyResult(
        name=memory.name,
        peak_mib=memory.peak * TOKEN_BYTES / 2**20,
        internal_waste=(memory.allocated - memory.written) / memory.allocated,
        external_waste=(memory.extent - memory.allocated) / memory.extent,
        allocation_p50_us=allocation_p50,
        allocation_p99_us=allocation_p99,
        step_p50_us=step_p50,
        step_p99_us=step_p99,
    )


def replay(strategy: KVStrategy, recording: Recording) -> Replay:
    """The recorded steps on another strategy; memory is sampled when a step has grown all."""
    result = Replay(strategy.name)
    lengths: dict[int, int] = {}
    clock = time.perf_counter_ns
    for number, step in enumerate(recording.steps):
        elapsed = 0
        for index, length in step.grown:
            start = clock()
            took_memory = strategy.grow(index, length)
            took_ns = clock() - start
            elapsed += took_ns
            if took_memory:
                result.allocation_ns.append(took_ns)
                strategy.place(index)
            lengths[index] = length
        is_pool = isinstance(strategy, PagedPool)
        result.written += recording.written_slots[number] if is_pool else sum(lengths.values())
        result.allocated += strategy.allocated()
        result.extent += strategy.extent()
        result.peak = max(result.peak, strategy.extent())
        start = clock()
        for index, length in step.grown:
            strategy.commit(index, length)
        for index in step.ended:
            strategy.free(index)
        result.step_ns.append(elapsed + clock() - start)
        for index in step.ended:
            strategy.place(index)
            del lengths[index]
    return result


def least(runs: list[list[int]]) -> list[int]:
    """Of each entry, the least over the runs."""
    return [min(entries) for entries in zip(*runs, strict=True)]


def percentiles(values_ns: list[int]) -> tuple[float, float]:
    """P50 and P99 in microseconds."""
    p50, p99 = np.percentile(values_ns, [50, 99]) / 1000
    return float(p50), float(p99)


def show(pool: PoolResult, strategies: list[StrategyResult]) -> None:
    console = Console(width=100)
    table = Table(title=f"Block pool, {pool.num_requests} requests, {pool.num_steps} steps")
    table.add_column("measure")
    table.add_column("value", justify="right")
    times = f"{pool.schedule_p50_us:.0f} / {pool.schedule_p99_us:.0f}"
    rows = {
        "sequences running, mean": f"{pool.mean_running:.1f}",
        "waste, mean": f"{pool.mean_waste:.2%}",
        "waste, worst step": f"{pool.max_waste:.2%}",
        "prefix hits, with the cache": f"{pool.hit_rate:.1%}",
        "prefix hits, most that any cache could share": f"{pool.hit_rate_ceiling:.1%}",
        "prefix hits, contiguous slots with their last text": f"{pool.hit_rate_contiguous:.1%}",
        "prefix hits, without a cache": f"{pool.hit_rate_without_cache:.1%}",
        "schedule + update, P50 / P99 µs": times,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    table = Table(title="The same steps on other KV memory (waste inside and outside; times in µs)")
    table.add_column("strategy", no_wrap=True)
    for column in ("peak MiB", "", "in", "out", "alloc P50", "P99", "step P50", "P99"):
        table.add_column(column, justify="right")
    paged = strategies[0].peak_mib
    for result in strategies:
        table.add_row(
            result.name,
            f"{result.peak_mib:.0f}",
            f"{result.peak_mib / paged:.1f}x",
            f"{result.internal_waste:.1%}",
            f"{result.external_waste:.1%}",
            microseconds(result.allocation_p50_us),
            microseconds(result.allocation_p99_us),
            microseconds(result.step_p50_us),
            microseconds(result.step_p99_us),
        )
    console.print(table)


def microseconds(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=trace_file.PATH, help="CSV of requests")
    parser.add_argument("--max-model-len", type=int, default=2048, help="of a contiguous slot")
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the least counts")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    trace = trace_file.load(arguments.trace)
    recordings = [
        record(trace, num_blocks=NUM_BLOCKS, max_num_seqs=MAX_NUM_SEQS, enable_prefix_caching=True)
        for _ in range(arguments.repeats)
    ]
    recording = recordings[0]
    pool = measure_pool(trace, recording, least([run.schedule_ns for run in recordings]))
    makers: list[Callable[[], KVStrategy]] = [
        lambda: PagedPool(trace, NUM_BLOCKS, MAX_NUM_SEQS),
        lambda: ContiguousSlots(MAX_NUM_SEQS, arguments.max_model_len),
        DoublingBuffers,
        lambda: MallocPerRequest(trace),
    ]
    strategies = [measure_strategy(make, recording, arguments.repeats) for make in makers]
    show(pool, strategies)
    if arguments.json:
        figures = {
            "machine": platform.processor() or platform.machine(),
            "pool": asdict(pool),
            "strategies": [asdict(result) for result in strategies],
        }
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
