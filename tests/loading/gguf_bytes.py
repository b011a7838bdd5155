"""Writes GGUF files field by field, right or wrong, from the format's description."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

SCALARS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<B"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data)) + data


def scalar(kind: str, value: float) -> bytes:
    type_id, layout = SCALARS[kind]
    return u32(type_id) + struct.pack(layout, value)


def text(value: str | bytes) -> bytes:
    return u32(8) + string(value)


def array(kind: str, values: Sequence[float] | Sequence[str]) -> bytes:
    if kind == "string":
        body = b"".join(string(value) for value in values)  # type: ignore[arg-type]
        return u32(9) + u32(8) + u64(len(values)) + body
    type_id, layout = SCALARS[kind]
    body = np.array(values, dtype=layout).tobytes()
    return u32(9) + u32(type_id) + u64(len(values)) + body


@dataclass
class Tensor:
    """`dimensions` as the file has them, the contiguous one first; `offset` None is the next."""

    name: str
    dimensions: Sequence[int]
    type_id: int
    data: bytes
    offset: int | None = None


@dataclass
class GgufFile:
    """Counts default to the true ones."""

    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: bytes = u32(3)
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        head = self.magic + self.version
        head += u64(len(self.tensors) if self.num_tensors is None else self.num_tensors)
        head += u64(len(self.keys) if self.num_keys is None else self.num_keys)
        for key, value in self.keys:
            head += string(key) + value
        weights = b""
        for tensor in self.tensors:
            offset = len(weights) if tensor.offset is None else tensor.offset
            head += string(tensor.name) + u32(len(tensor.dimensions))
            head += b"".join(u64(extent) for extent in tensor.dimensions)
            head += u32(tensor.type_id) + u64(offset)
            weights += self._padded(tensor.data)
        return self._padded(head) + weights

    def _padded(self, data: bytes) -> bytes:
        return data + b"\0" * (-len(data) % self.alignment)
