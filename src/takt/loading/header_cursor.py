"""A bounded, forward-only reader of little-endian fields, over windows of a file."""

from __future__ import annotations

import struct
from typing import Any

from takt.errors import ModelError
from takt.loading.tensor_file import TensorFile

_WINDOW_BYTES = 1 << 20

MAX_STRING_BYTES = 64 << 20
"""Longest string: some files embed a whole tokenizer.json, the largest known is 34 MB."""

_LENGTH = struct.Struct("<Q")


class HeaderCursor:
    """Reads fields in order; each is checked against the file's size before it is read."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._window = b""
        self._window_offset = 0
        self._at = 0

    @property
    def offset(self) -> int:
        """Offset in the file of the next byte."""
        return self._window_offset + self._at

    @property
    def num_remaining(self) -> int:
        return self._file.size - self.offset

    def fail(self, field: str, problem: str) -> ModelError:
        return ModelError(f"{self._file.path}: {field}: {problem}")

    def scalar(self, layout: struct.Struct, field: str) -> Any:
        self._ensure(layout.size, field)
        (value,) = layout.unpack_from(self._window, self._at)
        self._at += layout.size
        return value

    def take(self, num_bytes: int, field: str) -> bytes:
        self._ensure(num_bytes, field)
        value = self._window[self._at : self._at + num_bytes]
        self._at += num_bytes
        return value

    def string(self, field: str, max_bytes: int = MAX_STRING_BYTES) -> str:
        num_bytes = self.scalar(_LENGTH, f"{field} (length)")
        if num_bytes > max_bytes:
            raise self.fail(field, f"string of {num_bytes} bytes, the limit is {max_bytes}")
        try:
            return self.take(num_bytes, field).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(field, "string is not UTF-8") from None

    def strings(self, count: int, field: str) -> list[str]:
        """`count` strings in a row; a loop of its own, for vocabularies of 260,000 entries."""
        values: list[str] = []
        unpack = _LENGTH.unpack_from
        window, at = self._window, self._at
        for index in range(count):
            end = at + 8
            if end <= len(window):
                end += unpack(window, at)[0]
            if end > len(window) or at + 8 > len(window):
                self._at = at
                values.append(self.string(f"{field}[{index}]"))
                window, at = self._window, self._at
                continue
            try:
                values.append(window[at + 8 : end].decode("utf-8"))
            except UnicodeDecodeError:
                raise self.fail(f"{field}[{index}]", "string is not UTF-8") from None
            at = end
        self._at = at
        return values

    def _ensure(self, num_bytes: int, field: str) -> None:
        if self._at + num_bytes <= len(self._window):
            return
        offset = self.offset
        self._file.check_extent(offset, num_bytes, field)
        wanted = min(max(num_bytes, _WINDOW_BYTES), self._file.size - offset)
        self._window = self._file.read_at(offset, wanted, field)
        self._window_offset = offset
        self._at = 0
