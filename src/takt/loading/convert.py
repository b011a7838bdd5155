"""float32 values to storage types: the slow reference of what packing converts to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from takt.loading.dequantize import dequantize
from takt.types.quant import CONVERTIBLE_TO, QuantTensor, QuantType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_GROUP = 32
_NUM_TRIALS = 12


def converted(tensor: QuantTensor) -> QuantTensor:
    """The tensor in its `packed_type`; itself if that is None or its own.

    Raises `ValueError` for a value that the type cannot hold.
    """
    kind = tensor.packed_type
    if kind is None or kind is tensor.type:
        return tensor
    if kind not in CONVERTIBLE_TO:
        raise ValueError(f"nothing is converted to {kind.label}")
    values = dequantize(tensor).reshape(tensor.num_rows, tensor.num_columns)
    raw = _CONVERT[kind](values).view(np.uint8)
    return QuantTensor(raw.reshape(tensor.num_rows, -1), kind, tensor.shape)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """uint16 bits of float32 values rounded to bfloat16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    # Rounding could carry a NaN's payload into its sign; keep it a quiet NaN.
    quiet = (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return np.where(np.isnan(values), quiet, rounded)


def _half(values: Floats) -> NDArray[np.float16]:
    limit = float(np.finfo(np.float16).max)
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= limit:
        raise ValueError(f"a magnitude of {largest:g} is more than float16 can hold, {limit:g}")
    halves: NDArray[np.float16] = values.astype(np.float16)
    return halves


def _q8_0(values: Floats) -> Bytes:
    """The scale is max |x| / 127, rounded up where f16 has no such number."""
    groups = values.reshape(-1, _GROUP)
    largest = np.abs(groups).max(axis=1)
    scale = _half(largest / np.float32(127))
    too_small = scale.astype(np.float32) * np.float32(127) < largest
    scale = np.where(too_small, np.nextafter(scale, np.float16(np.inf)), scale)
    d = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    q = np.clip(np.rint(groups * inverse[:, None]), -127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8).reshape(-1, 2), q.view(np.uint8)], axis=1)


def _levels(groups: Floats, low: Floats, inverse: Floats) -> Floats:
    levels: Floats = np.clip(np.rint((groups - low[:, None]) * inverse[:, None]), 0, 15)
    return levels


def _squared_error(groups: Floats, q: Floats, d: Floats, low: Floats) -> Floats:
    error: Floats = ((d[:, None] * q + low[:, None] - groups) ** 2).sum(axis=1)
    return error


def _q4_1(values: Floats) -> Bytes:
    """Scale and minimum of least squared error over a few grids, each fitted to its own levels."""
    groups = values.reshape(-1, _GROUP)
    _half(groups)
    low = groups.min(axis=1)
    width = groups.max(axis=1) - low
    safe: Floats = np.where(width > 2.0**-60, width, np.float32(1))
    best_d, best_low = width / np.float32(15), low
    least = _squared_error(groups, _levels(groups, low, np.float32(15) / safe), best_d, best_low)
    for trial in range(_NUM_TRIALS):
        q = _levels(groups, low, np.float32(13.8 + 0.2 * trial) / safe)
        d, start = _fit(groups, q, best_d, best_low)
        error = _squared_error(groups, q, d, start)
        better = error < least
        least = np.where(better, error, least)
        best_d, best_low = np.where(better, d, best_d), np.where(better, start, best_low)
    scale, minimum = _half(best_d), _half(best_low)
    d = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    levels = _levels(groups, minimum.astype(np.float32), inverse).astype(np.uint8)
    nibbles = levels[:, :16] | (levels[:, 16:] << np.uint8(4))
    fields = [field.view(np.uint8).reshape(-1, 2) for field in (scale, minimum)]
    return np.concatenate([*fields, nibbles], axis=1)


def _fit(groups: Floats, q: Floats, d: Floats, low: Floats) -> tuple[Floats, Floats]:
    """Least squares of the values over their levels; d and low where all levels are equal."""
    sum_q, sum_q2 = q.sum(axis=1), (q * q).sum(axis=1)
    sum_x, sum_xq = groups.sum(axis=1), (groups * q).sum(axis=1)
    spread = _GROUP * sum_q2 - sum_q * sum_q
    safe = np.where(spread > 0, spread, np.float32(1))
    fitted = (_GROUP * sum_xq - sum_x * sum_q) / safe
    start = (sum_q2 * sum_x - sum_q * sum_xq) / safe
    usable = (spread > 0) & (fitted > 0)
    return np.where(usable, fitted, d), np.where(usable, start, low)


_CONVERT = {
    QuantType.F32: lambda values: values,
    QuantType.F16: _half,
    QuantType.BF16: bfloat16_bits,
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_1: _q4_1,
}
