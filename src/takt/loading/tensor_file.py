"""Slices of tensors in an open file, by `pread`: nothing is mapped, only asked bytes are read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.base import TensorInfo
from takt.types.quant import QuantTensor


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor and the offset of its first byte in the file."""

    info: TensorInfo
    offset: int


class TensorFile:
    """A regular file, open for reading; `size` is its length in bytes when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Without O_NONBLOCK the open of a FIFO would wait for a writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ModelError(f"{path}: cannot be opened: {error.strerror}") from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelError(f"{path}: is not a regular file")
        self.size = status.st_size
        self.num_bytes_read = 0
        """Counted at the system call."""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read_at(self, offset: int, num_bytes: int, field: str) -> bytes:
        """Exactly `num_bytes` bytes; the caller has checked them against a limit of its own."""
        self.check_extent(offset, num_bytes, field)
        buffer = np.empty(num_bytes, dtype=np.uint8)
        self._fill(buffer, offset, field)
        return buffer.tobytes()

    def check_extent(self, offset: int, num_bytes: int, field: str) -> None:
        """Raises `ModelError` if the bytes do not lie inside the file."""
        if offset < 0 or num_bytes < 0 or offset + num_bytes > self.size:
            raise ModelError(
                f"{self.path}: {field}: {num_bytes} bytes at offset {offset} do not fit in the "
                f"file's {self.size} bytes"
            )

    def read_tensor(
        self,
        place: TensorPlace,
        rows: tuple[int, int] | None,
        columns: tuple[int, int] | None,
    ) -> QuantTensor:
        """Rows [first, last) and columns [first, last) of a tensor; None is all of them."""
        info = place.info
        if len(info.shape) > 2:
            raise UnsupportedModelError(
                f"{self.path}: tensor {info.name!r}: has shape {info.shape}; "
                "only vectors and matrices can be read"
            )
        num_rows = info.shape[0] if len(info.shape) == 2 else 1
        num_columns = info.shape[-1]
        first_row, last_row = self._check_range(info, "rows", rows, num_rows, 1)
        group_size = info.type.group_size
        first_column, last_column = self._check_range(
            info, "columns", columns, num_columns, group_size
        )
        stride = info.type.row_bytes(num_columns)
        width = info.type.row_bytes(last_column - first_column)
        raw = np.empty((last_row - first_row, width), dtype=np.uint8)
        start = place.offset + first_row * stride
        field = f"tensor {info.name!r}"
        if width == stride:
            self._fill(raw.reshape(-1), start, field)
        else:
            start += info.type.row_bytes(first_column)
            for index in range(len(raw)):
                self._fill(raw[index], start + index * stride, field)
        shape = (last_row - first_row, last_column - first_column)
        return QuantTensor(raw, info.type, shape if len(info.shape) == 2 else shape[1:])

    def _check_range(
        self,
        info: TensorInfo,
        axis: str,
        asked: tuple[int, int] | None,
        limit: int,
        group_size: int,
    ) -> tuple[int, int]:
        if asked is None:
            return 0, limit
        first, last = asked
        if not 0 <= first < last <= limit:
            raise ModelError(
                f"{self.path}: tensor {info.name!r}: {axis} {first}..{last} asked, has 0..{limit}"
            )
        if first % group_size or last % group_size:
            raise ModelError(
                f"{self.path}: tensor {info.name!r}: {axis} {first}..{last} do not fall on the "
                f"groups of {group_size} of {info.type.label}"
            )
        return first, last

    def _fill(self, buffer: NDArray[np.uint8], offset: int, field: str) -> None:
        view = buffer.data
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise ModelError(
                    f"{self.path}: {field}: cannot be read: {error.strerror}"
                ) from None
            if count == 0:
                raise ModelError(
                    f"{self.path}: {field}: the file ends at byte {offset + done}; "
                    "it was cut while open"
                )
            done += count
            self.num_bytes_read += count
