"""Reads a checkpoint's tensors by role: checked, in the row order and type the decoder wants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from takt.errors import ConfigError, ModelError
from takt.loading.base import Checkpoint, TensorInfo
from takt.loading.dequantize import dequantize
from takt.types.quant import QuantTensor, QuantType

_STORED_TYPES = {
    "auto": None,
    "float32": QuantType.F32,
    "bfloat16": QuantType.BF16,
    "float16": QuantType.F16,
}


class WeightReader:
    """Reads tensors one by one; remembers which were read.

    `dtype` is `auto` (as stored), or the type that matrices are unpacked to. `on_progress` is told
    bytes read and bytes in all. Every error names the file, the tensor and the shapes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if dtype not in _STORED_TYPES:
            raise ConfigError(f"--dtype {dtype!r} is not one of: {', '.join(_STORED_TYPES)}")
        self._checkpoint = checkpoint
        self._stored_type = _STORED_TYPES[dtype]
        self._on_progress = on_progress
        self._unread = set(checkpoint.tensors)
        self._bytes_done = 0
        self._bytes_total = sum(_stored_bytes(info) for info in checkpoint.tensors.values())

    def has(self, name: str) -> bool:
        return name in self._checkpoint.tensors

    def matrix(
        self, name: str, num_rows: int, num_columns: int, *, interleaved_heads: int | None = None
    ) -> QuantTensor:
        """`[num_rows, num_columns]`.

        With `interleaved_heads` the rows are those of that many heads, stored for rope of
        neighbouring pairs, and are put in order for rope of halves.
        """
        tensor = self._read(name, (num_rows, num_columns))
        if interleaved_heads is not None:
            raw = _halves_from_pairs(tensor.raw, interleaved_heads)
            tensor = QuantTensor(raw, tensor.type, tensor.shape)
        return self._as_stored_type(name, tensor)

    def vector(self, name: str, width: int, *, interleaved_heads: int | None = None) -> np.ndarray:
        """float32 `[width]`."""
        values = dequantize(self._read(name, (width,)))
        if interleaved_heads is not None:
            values = _halves_from_pairs(values.reshape(width, 1), interleaved_heads).reshape(width)
        return values

    def skip(self, name: str) -> None:
        """Marks a tensor as known and not needed."""
        if name in self._unread:
            self._unread.remove(name)
            self._report(_stored_bytes(self._checkpoint.tensors[name]))

    def finish(self, ignored_suffixes: tuple[str, ...]) -> None:
        """Raises if a tensor was left over: the model would not be the one the file holds."""
        for name in sorted(self._unread):
            if name.endswith(ignored_suffixes):
                self.skip(name)
        if self._unread:
            names = sorted(self._unread)
            raise ModelError(
                f"{self._checkpoint.path}: {len(names)} tensors have no place in this "
                f"architecture, the first is {names[0]} {self._checkpoint.tensors[names[0]].shape}"
            )

    def _read(self, name: str, shape: tuple[int, ...]) -> QuantTensor:
        info = self._checkpoint.tensors.get(name)
        if info is None:
            raise ModelError(
                f"{self._checkpoint.path}: tensor {name} {shape} is missing; the file is "
                "incomplete or of another architecture than its metadata says"
            )
        if tuple(info.shape) != shape:
            raise ModelError(
                f"{self._checkpoint.path}: tensor {name} has shape {tuple(info.shape)}; "
                f"the metadata asks for {shape}"
            )
        tensor = self._checkpoint.read(name)
        self._unread.discard(name)
        self._report(_stored_bytes(info))
        return tensor

    def _report(self, num_bytes: int) -> None:
        self._bytes_done += num_bytes
        if self._on_progress is not None:
            self._on_progress(self._bytes_done, self._bytes_total)

    def _as_stored_type(self, name: str, tensor: QuantTensor) -> QuantTensor:
        wanted = self._stored_type
        if wanted is None or tensor.type is wanted:
            return tensor
        values = dequantize(tensor)
        if wanted is QuantType.F32:
            raw = values
        elif wanted is QuantType.BF16:
            raw = bfloat16_bits(values)
        else:
            largest = float(np.abs(values).max(initial=0.0))
            if largest > float(np.finfo(np.float16).max):
                raise ModelError(
                    f"{self._checkpoint.path}: tensor {name} holds {largest:g}, more than float16 "
                    "can; use --dtype bfloat16 or float32"
                )
            raw = values.astype(np.float16)
        packed = raw.view(np.uint8).reshape(tensor.num_rows, wanted.row_bytes(tensor.num_columns))
        return QuantTensor(packed, wanted, tensor.shape)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """uint16 bits of float32 values rounded to bfloat16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    # Rounding could carry a NaN's payload into its sign; keep it a quiet NaN.
    quiet = (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return np.where(np.isnan(values), quiet, rounded)


def _halves_from_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Row 2i + j of a head goes to row j * head_dim / 2 + i. Rows are whole: raw bytes will do."""
    num_rows, width = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(num_rows, width)


def _stored_bytes(info: TensorInfo) -> int:
    num_rows = 1 if len(info.shape) == 1 else int(np.prod(info.shape[:-1]))
    return num_rows * info.type.row_bytes(info.shape[-1])
