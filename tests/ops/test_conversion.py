"""Weights converted while they are packed: what the numpy reference makes of them, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from random_model import VOCAB, RandomLayer, RandomModel
from takt.errors import ModelError
from takt.loading.convert import converted
from takt.loading.dequantize import dequantize
from takt.ops.native.ops import NativeOps
from takt.types.quant import QuantTensor, QuantType


@pytest.fixture
def ops() -> Iterator[NativeOps]:
    made = NativeOps(2)
    yield made
    made.close()


def model_packed_as(kind: QuantType, *, by_numpy: bool) -> RandomModel:
    model = RandomModel([RandomLayer()])
    for name, tensor in model.tensors.items():
        asked = dataclasses.replace(tensor, packed_type=kind)
        model.tensors[name] = converted(asked) if by_numpy else asked
    return model


@pytest.mark.parametrize("kind", [QuantType.F16, QuantType.BF16, QuantType.Q8_0])
def test_packing_converts_as_the_reference_does(ops: NativeOps, kind: QuantType) -> None:
    tokens = [int(t) for t in np.random.default_rng(1).integers(VOCAB, size=20)]
    ours, reference = (
        np.stack(
            [
                row.logprobs(VOCAB)
                for row in model_packed_as(kind, by_numpy=by_numpy)
                .drive(ops)
                .score(tokens, num_logprobs=VOCAB)
            ]
        )
        for by_numpy in (False, True)
    )
    np.testing.assert_array_equal(ours, reference)


def weights(values: np.ndarray, packed_type: QuantType) -> QuantTensor:
    raw = values.astype(np.float32).view(np.uint8).reshape(len(values), -1)
    return QuantTensor(raw, QuantType.F32, values.shape, packed_type, "blk.0.up")


def test_four_bits_err_by_less_than_the_plain_grid() -> None:
    values = np.random.default_rng(2).normal(size=(64, 256)).astype(np.float32)
    error = dequantize(converted(weights(values, QuantType.Q4_1))) - values
    groups = values.reshape(-1, 32)
    low = groups.min(axis=1, keepdims=True)
    step = (groups.max(axis=1, keepdims=True) - low) / 15
    plain = np.rint((groups - low) / step) * step + low - groups
    assert (error**2).sum() < 0.9 * (plain**2).sum()


def test_eight_bits_err_by_half_a_step() -> None:
    values = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    error = dequantize(converted(weights(values, QuantType.Q8_0))) - values
    largest = np.abs(values).reshape(-1, 32).max(axis=1, keepdims=True)
    assert (np.abs(error).reshape(-1, 32) <= largest / 127 * (0.5 + 2.0**-9)).all()


@pytest.mark.parametrize("value", [1e6, np.inf, np.nan])
def test_values_that_a_type_cannot_hold_are_refused_by_name(ops: NativeOps, value: float) -> None:
    values = np.full((4, 32), value)
    with pytest.raises(ModelError, match=r"blk\.0\.up cannot be packed: a magnitude of"):
        ops.pack_linear([weights(values, QuantType.F16)])
    with pytest.raises(ValueError, match="more than float16 can hold"):
        converted(weights(values, QuantType.F16))
