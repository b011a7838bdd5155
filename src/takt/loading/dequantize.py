"""Packed groups to fp32: the slow, exact reference of every storage type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from takt.types.quant import QuantTensor, QuantType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_NIBBLE = np.uint8(15)
_CHUNK_ELEMENTS = 1 << 18
"""Elements unpacked at a time: intermediates stay near 1 MiB each whatever the tensor's size."""


def dequantize(tensor: QuantTensor) -> Floats:
    """Values of a tensor as float32 of `tensor.shape`.

    Each value is computed in fp32 by the formula of its storage type, scale times integer first,
    so that it equals the value other readers of the format compute, bit for bit. Raises
    `ValueError` where `raw` does not have the bytes that type and shape call for.
    """
    kind = tensor.type
    row_bytes = kind.row_bytes(tensor.num_columns)
    if tensor.raw.dtype != np.uint8 or tensor.raw.shape != (tensor.num_rows, row_bytes):
        raise ValueError(
            f"raw is {tensor.raw.dtype} {tensor.raw.shape}, but {kind.label} of shape "
            f"{tensor.shape} needs uint8 {(tensor.num_rows, row_bytes)}"
        )
    values = np.empty(tensor.shape, dtype=np.float32)
    flat = values.reshape(-1)
    groups = np.ascontiguousarray(tensor.raw).reshape(-1, kind.group_bytes)
    unpack = _UNPACK[kind]
    step = _CHUNK_ELEMENTS // kind.group_size
    for first in range(0, len(groups), step):
        chunk = groups[first : first + step]
        at = first * kind.group_size
        flat[at : at + len(chunk) * kind.group_size] = unpack(chunk).reshape(-1)
    return values


# In what follows `groups` is uint8 [num_groups, group_bytes]; results are
# [num_groups, group_size] or any shape with the same elements in the same order.


def _unpack_f32(groups: Bytes) -> Floats:
    return groups.view("<f4")


def _unpack_f16(groups: Bytes) -> Floats:
    return groups.view("<f2").astype(np.float32)


def _unpack_bf16(groups: Bytes) -> Floats:
    return (groups.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _unpack_q4_0(groups: Bytes) -> Floats:
    return _half(groups, 0) * (_nibbles(groups[:, 2:]).astype(np.float32) - 8)


def _unpack_q4_1(groups: Bytes) -> Floats:
    return _half(groups, 0) * _nibbles(groups[:, 4:]).astype(np.float32) + _half(groups, 2)


def _unpack_q5_0(groups: Bytes) -> Floats:
    q = _nibbles(groups[:, 6:]) | _fifth_bits(groups[:, 2:6])
    return _half(groups, 0) * (q.astype(np.float32) - 16)


def _unpack_q5_1(groups: Bytes) -> Floats:
    q = _nibbles(groups[:, 8:]) | _fifth_bits(groups[:, 4:8])
    return _half(groups, 0) * q.astype(np.float32) + _half(groups, 2)


def _unpack_q8_0(groups: Bytes) -> Floats:
    return _half(groups, 0) * groups[:, 2:].view(np.int8).astype(np.float32)


def _unpack_q4_k(groups: Bytes) -> Floats:
    scales, minima = _k_scales(groups)
    q = _k_nibbles(groups[:, 16:])
    return scales[..., None] * q.astype(np.float32) - minima[..., None]


def _unpack_q5_k(groups: Bytes) -> Floats:
    scales, minima = _k_scales(groups)
    # Bit j of byte l is the fifth bit of element l of sub-group j.
    high = ((groups[:, None, 16:48] >> _shifts(*range(8))) & np.uint8(1)) << np.uint8(4)
    q = _k_nibbles(groups[:, 48:]) | high
    return scales[..., None] * q.astype(np.float32) - minima[..., None]


def _unpack_q6_k(groups: Bytes) -> Floats:
    # Two halves of 128 elements; each is 4 runs of 32 whose low nibbles are 64 bytes (low nibbles
    # of runs 0 and 1, then high nibbles for runs 2 and 3) and whose upper bit pairs share 32 bytes.
    num_groups = len(groups)
    low_bytes = groups[:, :128].reshape(num_groups, 2, 1, 64)
    low = (low_bytes >> _shifts(0, 4)) & _NIBBLE  # [num_groups, 2, 2, 64]
    high_bytes = groups[:, 128:192].reshape(num_groups, 2, 1, 32)
    high = (high_bytes >> _shifts(0, 2, 4, 6)) & np.uint8(3)  # [num_groups, 2, 4, 32]
    q = low.reshape(num_groups, 16, 16) | (high.reshape(num_groups, 16, 16) << 4)
    scales = _half(groups, 208) * groups[:, 192:208].view(np.int8).astype(np.float32)
    return scales[..., None] * (q.astype(np.float32) - 32)


def _half(groups: Bytes, offset: int) -> Floats:
    """The fp16 number at a byte offset of each group: float32 [num_groups, 1]."""
    field = np.ascontiguousarray(groups[:, offset : offset + 2])
    return field.view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """uint8 [num_groups, 16] to [num_groups, 32]: all low nibbles, then all high ones."""
    return np.concatenate([packed & _NIBBLE, packed >> np.uint8(4)], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """uint8 [num_groups, 4] to [num_groups, 32] of 0 or 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _shifts(*bits: int) -> Bytes:
    """Shift counts as the axis before the last."""
    return np.array(bits, dtype=np.uint8)[:, None]


def _k_nibbles(packed: Bytes) -> Bytes:
    """uint8 [num_groups, 128] to [num_groups, 8, 32]: byte l of run r holds sub-groups 2r, 2r+1."""
    runs = packed.reshape(len(packed), 4, 1, 32)
    pair = (runs >> _shifts(0, 4)) & _NIBBLE
    return pair.reshape(len(packed), 8, 32)


def _k_scales(groups: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of the 8 sub-groups of Q4_K and Q5_K: float32 [num_groups, 8] each.

    12 bytes at offset 4 hold 8 six-bit pairs: bytes 0-3 and 4-7 the first four scales and minima,
    bytes 8-11 the low nibbles of the last four, whose upper two bits top bytes 0-7.
    """
    first, second, rest = groups[:, 4:8], groups[:, 8:12], groups[:, 12:16]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 6) << 4)], axis=1)
    return (
        _half(groups, 0) * scales.astype(np.float32),
        _half(groups, 2) * minima.astype(np.float32),
    )


_UNPACK: dict[QuantType, Callable[[Bytes], Floats]] = {
    QuantType.F32: _unpack_f32,
    QuantType.F16: _unpack_f16,
    QuantType.BF16: _unpack_bf16,
    QuantType.Q4_0: _unpack_q4_0,
    QuantType.Q4_1: _unpack_q4_1,
    QuantType.Q5_0: _unpack_q5_0,
    QuantType.Q5_1: _unpack_q5_1,
    QuantType.Q8_0: _unpack_q8_0,
    QuantType.Q4_K: _unpack_q4_k,
    QuantType.Q5_K: _unpack_q5_k,
    QuantType.Q6_K: _unpack_q6_k,
}
