"""How fast the engine's own products run: many matrices, one row or a batch of rows."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from takt import _native
from takt.ops.native.ops import NativeOps
from takt.types.machine import ProductRate
from takt.types.quant import QuantTensor, QuantType
from takt.types.step import StepInput, StepLimits, StepOutput

_WIDTH = 1024
_NUM_MATRICES = {QuantType.Q4_1: 96, QuantType.BF16: 32}
"""About 64 MB each: more than the caches that a core has for itself."""
BATCH_ROWS = 256


def product_rate(ops: NativeOps, weights: QuantType, num_rows: int, seconds: float) -> ProductRate:
    """Median of programs that run one after the other for `seconds`, three times at least.

    Square matrices in a chain, so each reads other weights than the one before; giving the rows in
    between their form is part of it. One row is a generated token, several are a prompt.
    """
    rng = np.random.default_rng(0)
    matrices = [ops.pack_linear([_random(rng, weights)]) for _ in range(_NUM_MATRICES[weights])]
    run = _chain(ops, rng, matrices, num_rows)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        times.append(run())
    median = float(np.median(times))
    return ProductRate(
        weights=weights.name,
        num_rows=num_rows,
        bytes_s=sum(m.nbytes for m in matrices) / median,
        ops_s=2.0 * num_rows * _WIDTH * _WIDTH * len(matrices) / median,
    )


def _chain(
    ops: NativeOps, rng: np.random.Generator, matrices: list[_native.Weight], num_rows: int
) -> Callable[[], float]:
    """Returns a function that runs all products once and tells the seconds."""
    table = ops.pack_linear([_random(rng, QuantType.Q4_1)])

    def forward() -> None:
        x = ops.embed(table, 1.0)
        for matrix in matrices:
            x = ops.linear(x, matrix)

    limits = StepLimits(num_rows, 1, 1, 32, 1, 1, 1, 1, 1)
    program = ops.program(forward, limits, max_position=num_rows, eager=False)
    step, output = StepInput(limits), StepOutput(limits)
    step["header"][:6] = (1, num_rows, 1, 0, 0, 1 if num_rows == 1 else 0)
    step["token_ids"][:] = rng.integers(0, _WIDTH, num_rows)
    step["positions"][:] = np.arange(num_rows)
    step["query_start"][:] = (0, num_rows)
    step["seq_lens"][:] = num_rows

    def run() -> float:
        start = time.perf_counter()
        program.run(step, output)
        return time.perf_counter() - start

    run()
    return run


def _random(rng: np.random.Generator, weights: QuantType) -> QuantTensor:
    """A square matrix that keeps rows at about unit size, so that nothing becomes a denormal."""
    shape = (_WIDTH, _WIDTH)
    if weights is QuantType.BF16:
        values = rng.normal(0, _WIDTH**-0.5, shape).astype(np.float32)
        raw = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return QuantTensor(raw.view(np.uint8).reshape(_WIDTH, -1), weights, shape)
    # Of 32 weights: scale and least value as float16, then 4 bits each. Levels 0 to 15 spread by
    # 4.6 scales around 7.5.
    blocks = np.empty((_WIDTH, _WIDTH // 32, 20), dtype=np.uint8)
    scale = _WIDTH**-0.5 / 4.6
    blocks[..., :4] = np.array([scale, -7.5 * scale], dtype=np.float16).view(np.uint8)
    blocks[..., 4:] = rng.integers(0, 256, blocks[..., 4:].shape, dtype=np.uint8)
    return QuantTensor(blocks.reshape(_WIDTH, -1), weights, shape)
