"""Measures this machine with the native module's loops and the engine's own products."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from takt import _native
from takt.ops.create import usual_int8_tokens
from takt.ops.native.ops import NativeOps
from takt.ops.native.products_rate import BATCH_ROWS, product_rate
from takt.parallel.cpu_name import cpu_name
from takt.types.machine import (
    BarrierCost,
    CodecRate,
    InstructionPeak,
    MachineFigures,
    ProductRate,
    ReadRate,
)
from takt.types.quant import QuantType

OnProgress = Callable[[str, int, int], None]
"""What is measured, done, total."""

_LEAST_BYTES, _MOST_BYTES = 16 << 10, 256 << 20
_LARGEST_SHARE_OF_MEMORY = 8
_REPEATS = 3
_BARRIER_STEPS = 20
_PRODUCT_ROWS = (1, BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class _Plan:
    thread_counts: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: float
    """Of one measurement; each is repeated."""


def measure_machine(on_progress: OnProgress, seconds: float = 0.05) -> MachineFigures:
    """All figures; `seconds` is what one loop runs, of which there are some hundred.

    Register loops keep the best of three repeats, since a peak is what can be reached; reads,
    barriers and products the median.
    """
    num_threads = _native.num_usable_cpus()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    plan = _Plan(
        thread_counts(num_threads),
        read_sizes(memory_bytes, largest_cache_bytes()),
        seconds,
    )
    return MachineFigures(
        cpu=cpu_name(),
        num_threads=num_threads,
        memory_bytes=memory_bytes,
        isa=_native.selected_isa(),
        reads=tuple(_reads(plan, on_progress)),
        peaks=tuple(_peaks(plan, on_progress)),
        barriers=tuple(_barriers(plan, on_progress)),
        products=tuple(_products(num_threads, 4 * seconds, on_progress)),
        codecs=tuple(_codecs(plan, on_progress)),
    )


def thread_counts(num_threads: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all."""
    powers = [1 << i for i in range(num_threads.bit_length()) if 1 << i < num_threads]
    return (*powers, num_threads)


def read_sizes(memory_bytes: int, cache_bytes: int) -> tuple[int, ...]:
    """By fours up to 256 MiB, and twice the largest cache if that is more and memory allows."""
    sizes = []
    size = _LEAST_BYTES
    limit = memory_bytes // _LARGEST_SHARE_OF_MEMORY
    while size <= min(_MOST_BYTES, limit):
        sizes.append(size)
        size *= 4
    if sizes[-1] < 2 * cache_bytes <= limit:
        sizes.append(2 * cache_bytes)
    return tuple(sizes)


def largest_cache_bytes(root: Path = Path("/sys")) -> int:
    """Of the first CPU, as the kernel tells; 0 if it tells nothing."""
    largest = 0
    for path in (root / "devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        digits = text.rstrip("KM")
        largest = max(largest, int(digits) * unit if digits.isdigit() else 0)
    return largest


def _reads(plan: _Plan, on_progress: OnProgress) -> Iterator[ReadRate]:
    cases = [(t, n) for t in plan.thread_counts for n in plan.sizes if n // t >= 4096]
    for done, (threads, num_bytes) in enumerate(cases):
        on_progress("read bandwidth", done, len(cases))
        rates = [_native.read_bandwidth(num_bytes, threads, plan.seconds) for _ in range(_REPEATS)]
        yield ReadRate(threads, num_bytes, float(np.median(rates)))
    on_progress("read bandwidth", len(cases), len(cases))


def _peaks(plan: _Plan, on_progress: OnProgress) -> Iterator[InstructionPeak]:
    known = _native.multiply_instructions()
    cases = [(name, kind, t) for name, kind in known for t in plan.thread_counts]
    for done, (name, arithmetic, threads) in enumerate(cases):
        on_progress("multiply instructions", done, len(cases))
        rates = [_native.instruction_peak(name, threads, plan.seconds) for _ in range(_REPEATS)]
        yield InstructionPeak(name, arithmetic, threads, max(rates))
    on_progress("multiply instructions", len(cases), len(cases))


def _barriers(plan: _Plan, on_progress: OnProgress) -> Iterator[BarrierCost]:
    cases = [(t, spins) for t in plan.thread_counts if t > 1 for spins in (True, False)]
    for done, (threads, spins) in enumerate(cases):
        on_progress("barriers", done, len(cases))
        yield BarrierCost(threads, spins, _native.barrier_cost_ns(threads, spins, _BARRIER_STEPS))
    on_progress("barriers", len(cases), len(cases))


def _products(num_threads: int, seconds: float, on_progress: OnProgress) -> Iterator[ProductRate]:
    cases = [(w, m) for w in (QuantType.Q4_1, QuantType.BF16) for m in _PRODUCT_ROWS]
    ops = NativeOps(num_threads, int8_tokens=usual_int8_tokens())
    try:
        for done, (weights, num_rows) in enumerate(cases):
            on_progress("products", done, len(cases))
            yield product_rate(ops, weights, num_rows, seconds)
    finally:
        ops.close()
    on_progress("products", len(cases), len(cases))


def _codecs(plan: _Plan, on_progress: OnProgress) -> Iterator[CodecRate]:
    formats = ("bf16", "fp16", "int8")
    for done, name in enumerate(formats):
        on_progress("codecs", done, len(formats))
        costs = [_native.codec_cost(name, plan.seconds) for _ in range(_REPEATS)]
        encode_ns, decode_ns = (float(v) for v in np.median(costs, axis=0))
        yield CodecRate(name, encode_ns, decode_ns)
    on_progress("codecs", len(formats), len(formats))
