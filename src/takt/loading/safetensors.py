"""One safetensors file: a strict reader of its header, and slices of its tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.base import TensorInfo
from takt.loading.json_file import parse_json_object
from takt.loading.tensor_file import TensorFile, TensorPlace
from takt.types.quant import QuantTensor, QuantType

_MAX_HEADER_BYTES = 16 << 20
"""Twice what 60,000 tensors in one file need."""

_MAX_DIMENSIONS = 8
_LENGTH = struct.Struct("<Q")
_TYPES = {"F32": QuantType.F32, "F16": QuantType.F16, "BF16": QuantType.BF16}
_OTHER_TYPES = {
    "BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F64", "C64",
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4",
}  # fmt: skip


class SafetensorsFile:
    """An open file; `places` are its tensors."""

    def __init__(self, path: Path) -> None:
        """Raises `ModelError`, or `UnsupportedModelError` for a storage type."""
        self.path = path
        self._file = TensorFile(path)
        try:
            self.places: Mapping[str, TensorPlace] = self._read_header()
        except BaseException:
            self._file.close()
            raise

    @property
    def num_bytes_read(self) -> int:
        return self._file.num_bytes_read

    def read(
        self, name: str, rows: tuple[int, int] | None, columns: tuple[int, int] | None
    ) -> QuantTensor:
        return self._file.read_tensor(self.places[name], rows, columns)

    def close(self) -> None:
        self._file.close()

    def _fail(self, field: str, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {field}: {problem}")

    def _read_header(self) -> dict[str, TensorPlace]:
        (num_bytes,) = _LENGTH.unpack(self._file.read_at(0, 8, "header (length)"))
        if num_bytes > _MAX_HEADER_BYTES:
            raise self._fail("header (length)", f"{num_bytes}, the limit is {_MAX_HEADER_BYTES}")
        data = self._file.read_at(8, num_bytes, "header")
        header = parse_json_object(data, f"{self.path}: header")
        header.pop("__metadata__", None)
        start = 8 + num_bytes
        places = [self._place(name, entry, start) for name, entry in header.items()]
        end = start
        for place, num_tensor_bytes in sorted(places, key=lambda item: item[0].offset):
            if place.offset < end:
                raise self._fail(f"tensor {place.info.name!r}", "overlaps the tensor before it")
            end = place.offset + num_tensor_bytes
        return {place.info.name: place for place, _ in places}

    def _place(self, name: str, entry: Any, start: int) -> tuple[TensorPlace, int]:
        field = f"tensor {name!r}"
        if not isinstance(entry, dict):
            raise self._fail(field, "is not described by a JSON object")
        kind = self._storage_type(entry.get("dtype"), field)
        shape = self._integers(entry.get("shape"), f"{field} (shape)")
        if len(shape) > _MAX_DIMENSIONS or 0 in shape:
            raise self._fail(f"{field} (shape)", f"{shape[:_MAX_DIMENSIONS]} is no tensor's shape")
        offsets = self._integers(entry.get("data_offsets"), f"{field} (data_offsets)")
        if len(offsets) != 2:
            raise self._fail(f"{field} (data_offsets)", "are not two numbers")
        num_bytes = math.prod(shape) * kind.group_bytes
        if offsets[1] - offsets[0] != num_bytes:
            raise self._fail(
                f"{field} (data_offsets)",
                f"{offsets} span {offsets[1] - offsets[0]} bytes, but {kind.label} of shape "
                f"{shape} has {num_bytes}",
            )
        self._file.check_extent(start + offsets[0], num_bytes, field)
        info = TensorInfo(name, kind, tuple(shape) or (1,))
        return TensorPlace(info, start + offsets[0]), num_bytes

    def _storage_type(self, name: Any, field: str) -> QuantType:
        kind = _TYPES.get(name) if isinstance(name, str) else None
        if kind is not None:
            return kind
        if isinstance(name, str) and name in _OTHER_TYPES:
            raise UnsupportedModelError(
                f"{self.path}: {field} (dtype): {name} is not supported; "
                f"supported are {', '.join(_TYPES)}"
            )
        raise self._fail(f"{field} (dtype)", f"{str(name)[:40]!r} is no safetensors type")

    def _integers(self, value: Any, field: str) -> list[int]:
        if not isinstance(value, list):
            raise self._fail(field, "is not a list of numbers")
        if not all(type(item) is int and 0 <= item < 1 << 63 for item in value):
            raise self._fail(field, "is not a list of whole numbers of 0 or more")
        return value
