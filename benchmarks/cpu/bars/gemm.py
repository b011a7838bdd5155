"""Products at 256 rows on the model's four shapes, against the peak of the multiplier."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.native_programs import num_cpus, vnni_peak

from takt.ops.create import usual_int8_tokens
from takt.ops.native.ops import NativeOps
from takt.types.quant import QuantTensor, QuantType
from takt.types.step import StepInput, StepLimits, StepOutput

NUM_ROWS = 256
HIDDEN, QKV, MLP, VOCAB = 576, 960, 1536, 64
"""SmolLM2-135M; the table that activations come from is small, as it is not measured."""
REPEATS = 30
"""Calls of an operator in a program: as many as the model has layers."""


@dataclass(frozen=True, slots=True)
class Product:
    name: str
    num_operations: int
    call: Callable[[NativeOps, int], int]


def measure(setting: BenchSetting) -> BarResult:
    """Time of a program with a norm before each call, less that of the norms alone, per call.

    Rows are those of a prompt, in the form that the default gives them on this CPU. The norm is
    where they take it if a product follows, as in the model; alone it does not. Programs alternate,
    and the peak comes from as many threads in the same run.
    """
    ops = NativeOps(int8_tokens=usual_int8_tokens())
    peaks: list[float] = []
    try:
        products = _products(ops)
        norms = _program(ops, None)
        programs = [_program(ops, product) for product in products]
        times: list[list[float]] = [[] for _ in products]
        for _ in range(setting.scaled(40, 3)):
            norms_s = norms()
            for product_times, run in zip(times, programs, strict=True):
                product_times.append((run() - norms_s) / REPEATS)
        for _ in range(setting.scaled(5, 1)):
            peaks.append(vnni_peak(num_cpus(), setting.scaled(10, 3) / 10))
    finally:
        ops.close()
    peak = float(np.median(peaks))
    if peak == 0:
        return BarResult.not_measured("this CPU has no 8-bit dot product instruction")
    medians = [float(np.median(t)) for t in times]
    rates = [p.num_operations / s for p, s in zip(products, medians, strict=True)]
    share = sum(p.num_operations for p in products) / sum(medians) / peak
    details = {f"{p.name} GOP/s": r / 1e9 for p, r in zip(products, rates, strict=True)}
    details["peak GOP/s"] = peak / 1e9
    return BarResult(
        [Figure("share of peak", 100 * share, "%", 58.0, 70.0, is_floor=True)], details
    )


def _products(ops: NativeOps) -> list[Product]:
    rng = np.random.default_rng(0)
    qkv, output = (ops.pack_linear([_q4_1(rng, n, HIDDEN)]) for n in (QKV, HIDDEN))
    gate_up = ops.pack_linear([_q4_1(rng, 2 * MLP, HIDDEN)])
    down = ops.pack_linear([_q4_1(rng, HIDDEN, MLP)])
    two_per_weight = 2 * NUM_ROWS
    return [
        Product("qkv", two_per_weight * QKV * HIDDEN, lambda o, x: o.linear(x, qkv)),
        Product("output", two_per_weight * HIDDEN * HIDDEN, lambda o, x: o.linear(x, output)),
        Product(
            "gate, up and down",
            two_per_weight * 3 * MLP * HIDDEN,
            lambda o, x: o.gated_mlp(x, gate_up, down, "silu"),
        ),
    ]


def _program(ops: NativeOps, product: Product | None) -> Callable[[], float]:
    """Returns a function that runs norms, each with a call behind it, and tells the seconds."""
    rng = np.random.default_rng(1)
    table = ops.pack_linear([_q4_1(rng, VOCAB, HIDDEN)])
    weight = ops.pack_vector(np.ones(HIDDEN, dtype=np.float32))

    def forward() -> None:
        x = ops.embed(table, 1.0)
        for _ in range(REPEATS):
            x, _ = ops.norm(x, weight, 1e-5)
            if product is not None:
                product.call(ops, x)

    limits = StepLimits(NUM_ROWS, 1, 1, 32, 1, 1, 1, 1, 1)
    program = ops.program(forward, limits, max_position=NUM_ROWS, eager=False)
    step, output = StepInput(limits), StepOutput(limits)
    step["header"][:5] = (1, NUM_ROWS, 1, 0, 0)
    step["token_ids"][:] = rng.integers(0, VOCAB, NUM_ROWS)
    step["positions"][:] = np.arange(NUM_ROWS)
    step["query_start"][:] = (0, NUM_ROWS)
    step["seq_lens"][:] = NUM_ROWS

    def run() -> float:
        start_s = time.perf_counter()
        program.run(step, output)
        return time.perf_counter() - start_s

    run()
    return run


def _q4_1(rng: np.random.Generator, num_rows: int, num_columns: int) -> QuantTensor:
    """Random weights of about unit size: per 32, two halves (scale, least value) and 16 bytes."""
    blocks = np.empty((num_rows, num_columns // 32, 20), dtype=np.uint8)
    scales = np.array([0.1, -0.8], dtype=np.float16).view(np.uint8)
    blocks[..., :4] = scales
    blocks[..., 4:] = rng.integers(0, 256, blocks[..., 4:].shape, dtype=np.uint8)
    return QuantTensor(blocks.reshape(num_rows, -1), QuantType.Q4_1, (num_rows, num_columns))
