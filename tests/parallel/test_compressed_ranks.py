"""Ranks whose sums are exchanged rounded: the same bits in any batch, and as close as derived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_group import RankGroup

from step_driver import Chunk, RowRequest, StepDriver
from takt.config import EngineConfig, ParallelOptions
from takt.engine import all_reduce
from takt.engine.all_reduce import resolve_all_reduce_dtype
from takt.errors import ConfigError, InvariantError
from takt.parallel.compression import ReduceFormat
from takt.parallel.layout import ParallelLayout
from takt.parallel.pinning import RankCpus
from takt.types.quant import QuantTensor, QuantType
from tiny_models import VOCAB_SIZE, random_prompt

pytestmark = pytest.mark.oracle

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": np.sqrt(32) / (127 * np.sqrt(12))}
"""Largest relative error of a value; with int8 a row's share of its length (`model_driver`)."""


@contextmanager
def ranks(path: Path, layout: ParallelLayout, **options: Any) -> Iterator[RankGroup]:
    group = RankGroup(path, layout, options.pop("backend", "native"), **options)
    try:
        yield group
    finally:
        group.close()


def scores(driver: StepDriver, tokens: list[int], chunk_size: int | None = None) -> np.ndarray:
    rows = driver.score(tokens, chunk_size=chunk_size, num_logprobs=VOCAB_SIZE)
    return np.stack([row.logprobs(VOCAB_SIZE) for row in rows])


def scores_beside_another(driver: StepDriver, tokens: list[int]) -> np.ndarray:
    rows = [RowRequest(i, target=t, num_logprobs=VOCAB_SIZE) for i, t in enumerate(tokens[1:])]
    other = Chunk(driver.new_sequence(), random_prompt(23, seed=4))
    results = driver.step([other, Chunk(driver.new_sequence(), tokens[:-1], rows)])[1]
    return np.stack([row.logprobs(VOCAB_SIZE) for row in results])


@pytest.mark.parametrize("dtype", ROUNDING)
def test_rounded_sums_are_near_and_equal_in_any_batch(
    divisible: Callable[..., Path], dtype: str
) -> None:
    """The residual sums what the blocks add, each rounded before and after its sum; 4 is for the
    growth of an error through later layers, as in `int8_logprob_bound`.
    """
    path, tokens = divisible("llama_tied"), random_prompt(150, seed=8)
    with ranks(path, ParallelLayout(4)) as plain:
        exact = scores(plain.drive(max_logprobs=VOCAB_SIZE), tokens)
    with ranks(path, ParallelLayout(4), all_reduce_dtype=dtype) as group:
        driver = group.drive(max_logprobs=VOCAB_SIZE)
        got = scores(driver, tokens)
        assert np.array_equal(scores(driver, tokens, chunk_size=7), got)
        assert np.array_equal(scores_beside_another(driver, tokens), got)
    error = np.sqrt(np.mean((got - exact) ** 2))
    spread = float(exact.std(axis=-1).mean())
    assert 0 < error < 4 * np.sqrt(3) * ROUNDING[dtype] * spread


def test_neither_threads_nor_the_backend_change_the_exchange(
    divisible: Callable[..., Path],
) -> None:
    path, tokens = divisible("gemma3"), random_prompt(70, seed=3)
    layout = ParallelLayout(2, 2)
    results = []
    for num_threads in (1, 3):
        with ranks(path, layout, all_reduce_dtype="int8", num_threads=num_threads) as group:
            results.append(scores(group.drive(max_logprobs=VOCAB_SIZE), tokens))
    assert np.array_equal(*results)
    with ranks(path, layout, all_reduce_dtype="int8", backend="torch") as group:
        torch = scores(group.drive(max_logprobs=VOCAB_SIZE), tokens)
    spread = float(torch.std(axis=-1).mean())
    assert np.sqrt(np.mean((torch - results[0]) ** 2)) < 4 * np.sqrt(3) * ROUNDING["int8"] * spread


def config(dtype: str, tensor_size: int = 2) -> EngineConfig:
    options = ParallelOptions(tensor_parallel_size=tensor_size, all_reduce_dtype=dtype)
    return EngineConfig(parallel=options)


PINNED = [RankCpus((cpu,), 0, False) for cpu in range(2)]


def test_a_type_that_is_asked_for_is_taken_if_its_groups_fit() -> None:
    assert resolve_all_reduce_dtype(config("int8"), 640, PINNED) == "int8"
    assert resolve_all_reduce_dtype(config("float16"), 640, None) == "float16"
    assert resolve_all_reduce_dtype(config("float32"), 100, None) == "float32"
    with pytest.raises(ConfigError, match="multiple of 32, and this model's is 100: use float32"):
        resolve_all_reduce_dtype(config("int8"), 100, PINNED)


def test_auto_takes_what_was_measured_to_win(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []
    small = {ReduceFormat.PLAIN: 10e-6, ReduceFormat.BF16: 0.0, ReduceFormat.INT8: 8e-6}

    def measured(cpus: list[int], sizes: list[int]) -> list[dict[ReduceFormat, float]]:
        asked.append((cpus, sizes))
        return [small, {name: 100 * s for name, s in small.items()}]

    monkeypatch.setattr(all_reduce, "all_reduce_seconds", measured)
    caplog.set_level("INFO")
    for bf16, expected in ((7e-6, "bfloat16"), (11e-6, "int8")):
        small[ReduceFormat.BF16] = bf16
        assert resolve_all_reduce_dtype(config("auto"), 640, PINNED) == expected
    assert asked[0] == ([0, 1], [640, 640 * 512])
    assert "all-reduce: bfloat16; 1 tokens: float32 10.0 us, bfloat16 7.0 us" in caplog.text
    asked.clear()
    for size, hidden, pinned in ((1, 640, PINNED), (2, 640, None), (2, 100, PINNED)):
        assert resolve_all_reduce_dtype(config("auto", size), hidden, pinned) == "float32"
    assert not asked


def test_widths_that_groups_do_not_fill_are_an_error_of_the_program(
    divisible: Callable[..., Path],
) -> None:
    matrix = QuantTensor(np.zeros((16, 512), dtype=np.uint8), QuantType.F32, (16, 128))
    with ranks(divisible("llama_tied"), ParallelLayout(2), all_reduce_dtype="int8") as group:
        limits, decoder = group.drive().limits, group.decoders[0]
        ops, narrow = decoder.ops, decoder.ops.pack_linear([matrix])

        def forward() -> None:
            ops.all_reduce(ops.linear(ops.embed(decoder.embedding, 1.0), narrow))

        with pytest.raises(InvariantError, match="multiple of 32 columns, not 16"):
            ops.program(forward, limits, max_position=16, eager=False)
