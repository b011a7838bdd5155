"""Reads a checkpoint's tensors by role: checked, in the row order and type the decoder wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from takt.errors import ConfigError, ModelError
from takt.loading.base import Checkpoint, TensorInfo
from takt.loading.dequantize import dequantize
from takt.parallel.shard import Span
from takt.types.quant import QuantTensor, QuantType


class WeightReader:
    """Reads tensors one by one; remembers which were read.

    `packed_type(name, stored, num_columns)` is the type that a matrix is to be packed as.
    `on_progress` is told bytes read and bytes in all. Every error names the file, the tensor and
    the shapes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        packed_type: Callable[[str, QuantType, int], QuantType],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._packed_type = packed_type
        self._on_progress = on_progress
        self._unread = set(checkpoint.tensors)
        self._bytes_done = 0
        self._bytes_total = sum(_stored_bytes(info) for info in checkpoint.tensors.values())

    def has(self, name: str) -> bool:
        return name in self._checkpoint.tensors

    def matrix(
        self,
        name: str,
        num_rows: int,
        num_columns: int,
        *,
        rows: Span | None = None,
        columns: Span | None = None,
        interleaved_heads: int | None = None,
    ) -> QuantTensor:
        """`rows` and `columns` (all if None) of `[num_rows, num_columns]`.

        With `interleaved_heads` the rows read are those of that many heads, stored for rope of
        neighbouring pairs, and are put in order for rope of halves.
        """
        tensor = self._read(name, (num_rows, num_columns), rows, columns)
        if interleaved_heads is not None:
            raw = _halves_from_pairs(tensor.raw, interleaved_heads)
            tensor = QuantTensor(raw, tensor.type, tensor.shape)
        kind = self._packed_type(name, tensor.type, tensor.num_columns)
        if tensor.num_columns % kind.group_size:
            raise ConfigError(
                f"{self._checkpoint.path}: tensor {name} has {num_columns} columns, which do not "
                f"fill groups of {kind.group_size}, so it cannot become {kind.label}; leave out "
                "--quantization"
            )
        packed_type = None if kind is tensor.type else kind
        return replace(tensor, packed_type=packed_type, name=name)

    def vector(
        self,
        name: str,
        width: int,
        *,
        part: Span | None = None,
        interleaved_heads: int | None = None,
    ) -> np.ndarray:
        """float32, `part` (all if None) of `[width]`."""
        values = dequantize(self._read(name, (width,), None, part))
        if interleaved_heads is not None:
            values = _halves_from_pairs(values.reshape(-1, 1), interleaved_heads).reshape(-1)
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

    def _read(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> QuantTensor:
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
        tensor = self._checkpoint.read(
            name,
            rows=None if rows == (0, shape[0]) else rows,
            columns=None if columns == (0, shape[-1]) else columns,
        )
        self._unread.discard(name)
        self._report(_stored_bytes(info))
        return tensor

    def _report(self, num_bytes: int) -> None:
        self._bytes_done += num_bytes
        if self._on_progress is not None:
            self._on_progress(self._bytes_done, self._bytes_total)


def _halves_from_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Row 2i + j of a head goes to row j * head_dim / 2 + i. Rows are whole: raw bytes will do."""
    num_rows, width = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(num_rows, width)


def _stored_bytes(info: TensorInfo) -> int:
    num_rows = 1 if len(info.shape) == 1 else int(np.prod(info.shape[:-1]))
    return num_rows * info.type.row_bytes(info.shape[-1])
