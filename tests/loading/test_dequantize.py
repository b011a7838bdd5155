"""Every storage type against the values the `gguf` package computes from the same bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from takt.loading.dequantize import dequantize
from takt.types.quant import QuantTensor, QuantType


def random_tensor(kind: QuantType, shape: tuple[int, ...], seed: int) -> QuantTensor:
    """Random bytes with finite fp16 scales: every integer field takes every value."""
    rng = np.random.default_rng(seed)
    num_rows = 1 if len(shape) == 1 else shape[0]
    num_bytes = num_rows * kind.row_bytes(shape[-1])
    raw = rng.integers(0, 256, num_bytes, dtype=np.uint8)
    if kind in (QuantType.F32, QuantType.F16, QuantType.BF16):
        values = rng.standard_normal(num_bytes // kind.group_bytes).astype(np.float32)
        encoded = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.name])
        raw = np.ascontiguousarray(encoded).view(np.uint8).reshape(-1)
    else:
        groups = raw.reshape(-1, kind.group_bytes)
        offsets = {QuantType.Q6_K: (208,)}.get(kind, (0,) if kind.label.endswith("_0") else (0, 2))
        for at in offsets:
            scale = rng.uniform(-2, 2, len(groups)).astype(np.float16)
            groups[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return QuantTensor(raw.reshape(num_rows, -1), kind, shape)


@pytest.mark.parametrize("kind", list(QuantType), ids=lambda kind: kind.label)
@pytest.mark.parametrize("shape", [(5, 768), (256,), (3, 1024)])
def test_equals_the_reference_bit_for_bit(kind: QuantType, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(kind, shape, seed=len(shape))
    expected = gguf.quants.dequantize(tensor.raw, gguf.GGMLQuantizationType[kind.name])
    actual = dequantize(tensor)
    assert actual.dtype == np.float32
    assert actual.shape == shape
    np.testing.assert_array_equal(
        actual.view(np.uint32), expected.astype(np.float32).reshape(shape).view(np.uint32)
    )


@pytest.mark.parametrize("kind", [QuantType.Q4_1, QuantType.Q6_K, QuantType.BF16])
def test_a_tensor_of_many_chunks_equals_its_rows_one_by_one(kind: QuantType) -> None:
    tensor = random_tensor(kind, (700, 1024), seed=3)
    whole = dequantize(tensor)
    for row in (0, 255, 256, 257, 511, 699):
        alone = QuantTensor(tensor.raw[row : row + 1], kind, (1024,))
        np.testing.assert_array_equal(whole[row], dequantize(alone))


def test_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="q4_0 of shape"):
        dequantize(QuantTensor(np.zeros((2, 18), np.uint8), QuantType.Q4_0, (2, 64)))


def test_columns_that_split_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 32"):
        dequantize(QuantTensor(np.zeros((1, 18), np.uint8), QuantType.Q4_0, (33,)))
