"""What the KV cache's types keep of K and V, natively and in torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from random_model import VOCAB, RandomLayer, RandomModel
from step_driver import Chunk, RowRequest, StepDriver
from takt import _native
from takt.ops.native.ops import NativeOps
from takt.ops.torch.attention import rounded
from takt.ops.torch.ops import TorchOps
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec

QUANTISED = [KVDtype.FP8_E4M3, KVDtype.INT8]


def all_logprobs(driver: StepDriver, tokens: list[int], sizes: Sequence[int]) -> np.ndarray:
    """float32 `[num_tokens, VOCAB]` of one sequence, in chunks of such sizes."""
    sequence, rows, start = driver.new_sequence(), [], 0
    for turn in range(len(tokens)):
        chunk = tokens[start : start + sizes[turn % len(sizes)]]
        start += len(chunk)
        if chunk:
            requests = [RowRequest(i, num_logprobs=VOCAB) for i in range(len(chunk))]
            (results,) = driver.step([Chunk(sequence, chunk, requests)])
            rows += [r.logprobs(VOCAB) for r in results]
    driver.restart()
    return np.stack(rows)


@pytest.mark.parametrize("dtype", KVDtype)
@pytest.mark.parametrize("block_size", [8, 16])
def test_native_agrees_with_torch(dtype: KVDtype, block_size: int) -> None:
    """Where the two differ by a rounding of fp32, K or V may come to lie on the other side of a
    border between two codes: rarely, and only by one step of that element.
    """
    model = RandomModel([RandomLayer(), RandomLayer(window=24)])
    tokens = np.random.default_rng(5).integers(VOCAB, size=90).tolist()
    options = {"kv_dtype": dtype, "block_size": block_size}
    ops = NativeOps(2)
    got = all_logprobs(model.drive(ops, **options), tokens, [40, 1, 9])
    ops.close()
    expected = all_logprobs(model.drive(TorchOps(), **options), tokens, [90])
    errors = np.abs(got - expected)
    exact = all_logprobs(model.drive(TorchOps()), tokens, [90])
    loss = np.abs(expected - exact)
    if dtype is KVDtype.F32:
        assert errors.max() < 1e-3
        return
    assert np.median(loss) > 1e-4, "the cache did not round"
    assert np.median(errors) < 0.05 * np.median(loss)
    assert errors.max() < loss.max()


@pytest.mark.parametrize("dtype", QUANTISED)
def test_threads_chunks_and_instruction_sets_give_the_same_bits(dtype: KVDtype) -> None:
    model = RandomModel([RandomLayer(), RandomLayer(window=300)])
    tokens = np.random.default_rng(6).integers(VOCAB, size=620).tolist()
    options = {"kv_dtype": dtype, "max_seq_tokens": 640, "max_num_tokens": 620, "max_num_seqs": 1}

    def last(
        num_threads: int, size: int, isa: str | None = None, eager: bool = False
    ) -> np.ndarray:
        ops = NativeOps(num_threads)
        _native.select_isa(isa)
        try:
            driver = model.drive(ops, eager=eager, **options)
            sequence = driver.new_sequence()
            for start in range(0, len(tokens), size):
                request = RowRequest(num_logprobs=VOCAB)
                ((row,),) = driver.step([Chunk(sequence, tokens[start : start + size], [request])])
            return row.logprobs(VOCAB)
        finally:
            _native.select_isa(None)
            ops.close()

    expected = last(1, 620)
    for num_threads, size, eager in ((2, 155, False), (3, 31, False), (2, 310, True)):
        np.testing.assert_array_equal(last(num_threads, size, eager=eager), expected)
    for isa in _native.available_isas():
        if isa != "generic":  # slow here; the native tests hold it to the same bits
            np.testing.assert_array_equal(last(2, 620, isa), expected)


@pytest.mark.parametrize("dtype", KVDtype)
def test_both_sides_count_the_same_bytes(dtype: KVDtype) -> None:
    groups = (KVGroupSpec((0, 2), None), KVGroupSpec((1,), 64))
    spec = KVCacheSpec(groups, num_kv_heads=3, head_dim=64, block_size=16, dtype=dtype)
    pool = _native.KVPool([0, 1, 0], [4, 5], 3, 64, 16, dtype.label)
    for group in range(2):
        assert pool.block_bytes(group) == spec.block_bytes(group)
    halves = {KVDtype.F32: 4.0, KVDtype.BF16: 2.0, KVDtype.FP8_E4M3: 1.0, KVDtype.INT8: 66 / 64}
    assert spec.block_bytes(1) == 2 * 3 * 16 * 64 * halves[dtype]


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="fp4; known: bfloat16, float32, fp8_e4m3, int8"):
        _native.KVPool([0], [1], 1, 16, 16, "fp4")


def test_fp8_saturates_and_int8_spares_the_small_rows() -> None:
    values = torch.tensor([[1e6, -500.0, 448.0, 2.0**-9], [3e-3, -1e-3, 1e-5, 0.0]])
    fp8 = rounded(values, KVDtype.FP8_E4M3)
    assert fp8[0].tolist() == [448.0, -448.0, 448.0, 2.0**-9]
    int8 = rounded(values, KVDtype.INT8)
    assert (int8 - values).abs().amax(-1) == pytest.approx([1e6 / 127 / 2, 3e-3 / 127 / 2], rel=1.1)
    assert not rounded(torch.zeros(2, 8), KVDtype.INT8).any()
