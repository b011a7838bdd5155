"""GGUF files: a strict reader of versions 2 and 3.

Every count, length, offset and type is checked against the file's size, or a limit well above any
real model, before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.base import TensorInfo
from takt.loading.header_cursor import HeaderCursor
from takt.loading.tensor_file import TensorFile, TensorPlace
from takt.types.quant import QuantTensor, QuantType

_MAX_KEYS = 1 << 16
_MAX_KEY_BYTES = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
_DEFAULT_ALIGNMENT = 32
_MAX_ELEMENTS = 1 << 22
"""Array elements of all metadata together: the largest vocabularies (262,144 tokens with scores
and types) have under a million, and reading this many stays within a second."""

_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING = 8
_ARRAY = 9
_BOOL = 7
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}

_TENSOR_TYPES = {
    0: QuantType.F32,
    1: QuantType.F16,
    2: QuantType.Q4_0,
    3: QuantType.Q4_1,
    6: QuantType.Q5_0,
    7: QuantType.Q5_1,
    8: QuantType.Q8_0,
    12: QuantType.Q4_K,
    13: QuantType.Q5_K,
    14: QuantType.Q6_K,
    30: QuantType.BF16,
}
_OTHER_TENSOR_TYPES = {
    9: "q8_1", 10: "q2_k", 11: "q3_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs",
    19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16",
    26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip


class GGUFCheckpoint:
    """An open GGUF file; implements `Checkpoint`."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises `ModelError`, or `UnsupportedModelError` for a storage type."""
        self.path = path
        self._file = TensorFile(path)
        try:
            header = _Header(self._file)
        except BaseException:
            self._file.close()
            raise
        self.metadata: Mapping[str, Any] = header.metadata
        self._places = header.places
        self.tensors: Mapping[str, TensorInfo] = {
            name: place.info for name, place in header.places.items()
        }

    @property
    def num_bytes_read(self) -> int:
        return self._file.num_bytes_read

    def read(
        self,
        name: str,
        *,
        rows: tuple[int, int] | None = None,
        columns: tuple[int, int] | None = None,
    ) -> QuantTensor:
        place = self._places.get(name)
        if place is None:
            raise ModelError(f"{self.path}: tensor {name!r}: the file has no such tensor")
        return self._file.read_tensor(place, rows, columns)

    def close(self) -> None:
        self._file.close()


class _Header:
    """All that comes before the weights."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._cursor = HeaderCursor(file)
        self._num_elements_left = _MAX_ELEMENTS
        self._read_version()
        num_tensors = self._count("tensor count", _MAX_TENSORS, _MIN_TENSOR_BYTES)
        num_keys = self._count("metadata count", _MAX_KEYS, _MIN_KEY_BYTES)
        self.metadata = self._read_metadata(num_keys)
        alignment = self._alignment()
        self._refuse_split()
        tensors = self._read_tensor_infos(num_tensors, alignment)
        start = -(-self._cursor.offset // alignment) * alignment
        self.places = self._place(tensors, start)

    def _read_version(self) -> None:
        cursor = self._cursor
        magic = cursor.take(4, "magic")
        if magic not in (b"GGUF", b"FUGG"):
            raise cursor.fail("magic", f"is {magic!r}, not b'GGUF': this is not a GGUF file")
        version = cursor.scalar(_U32, "version")
        if magic == b"FUGG" or (version & 0xFFFF == 0 and version != 0):
            raise cursor.fail("version", "the file is big-endian; only little-endian is read")
        if version not in (2, 3):
            raise cursor.fail("version", f"is {version}, the known ones are 2 and 3")

    def _count(self, field: str, limit: int, min_bytes: int) -> int:
        count: int = self._cursor.scalar(_U64, field)
        room = self._cursor.num_remaining // min_bytes
        if count > min(limit, room):
            why = f"the limit is {limit}" if count > limit else f"the file has room for {room}"
            raise self._cursor.fail(field, f"is {count}, {why}")
        return count

    def _read_metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(num_keys):
            key = self._cursor.string(f"metadata key {index}", _MAX_KEY_BYTES)
            if key in metadata:
                raise self._cursor.fail(f"metadata key {index}", f"{key!r} comes twice")
            kind = self._cursor.scalar(_U32, f"{key} (type)")
            metadata[key] = self._read_array(key) if kind == _ARRAY else self._read_one(kind, key)
        return metadata

    def _read_one(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._cursor.string(key)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._cursor.fail(f"{key} (type)", f"{kind} is no GGUF value type")
        value = self._cursor.scalar(layout, key)
        if kind != _BOOL:
            return value
        if value > 1:
            raise self._cursor.fail(key, f"{value} is no boolean")
        return bool(value)

    def _read_array(self, key: str) -> list[Any]:
        cursor = self._cursor
        kind = cursor.scalar(_U32, f"{key} (element type)")
        layout = _SCALARS.get(kind)
        if layout is None and kind != _STRING:
            raise cursor.fail(f"{key} (element type)", f"{kind} is no type of array elements")
        element_bytes = layout.size if layout is not None else 8
        count = self._count(f"{key} (length)", self._num_elements_left, element_bytes)
        self._num_elements_left -= count
        if layout is None:
            return cursor.strings(count, key)
        data = cursor.take(count * element_bytes, key)
        values: list[Any] = np.frombuffer(data, dtype=layout.format).tolist()
        if kind == _BOOL:
            return [bool(value) for value in values]
        return values

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        is_valid = isinstance(alignment, int) and 8 <= alignment <= _MAX_ALIGNMENT
        if not is_valid or alignment & (alignment - 1):
            raise self._cursor.fail(
                "general.alignment", f"is {alignment!r}, not a power of two of 8..{_MAX_ALIGNMENT}"
            )
        return int(alignment)

    def _refuse_split(self) -> None:
        num_files = self.metadata.get("split.count", 1)
        if num_files not in (0, 1):
            raise UnsupportedModelError(
                f"{self._file.path}: split.count: the model is split over {num_files} files; merge "
                "them into one"
            )

    def _read_tensor_infos(self, num_tensors: int, alignment: int) -> list[TensorPlace]:
        """Places relative to the start of the weights."""
        places = []
        for index in range(num_tensors):
            name = self._cursor.string(f"tensor {index} (name)", _MAX_KEY_BYTES)
            field = f"tensor {name!r}"
            shape = self._read_shape(field)
            kind = self._read_tensor_type(field)
            offset = self._cursor.scalar(_U64, f"{field} (offset)")
            if offset % alignment:
                raise self._cursor.fail(
                    f"{field} (offset)", f"{offset} is not a multiple of {alignment}"
                )
            if shape[-1] % kind.group_size:
                raise self._cursor.fail(
                    f"{field} (shape)",
                    f"{shape[-1]} columns do not fill whole groups of {kind.group_size} "
                    f"({kind.label})",
                )
            places.append(TensorPlace(TensorInfo(name, kind, shape), offset))
        return places

    def _read_shape(self, field: str) -> tuple[int, ...]:
        """The file gives the contiguous dimension first; ours comes last. Outer ones are cut."""
        num_dimensions = self._cursor.scalar(_U32, f"{field} (dimensions)")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._cursor.fail(
                f"{field} (dimensions)", f"is {num_dimensions}, must be 1 to {_MAX_DIMENSIONS}"
            )
        shape = [self._cursor.scalar(_U64, f"{field} (shape)") for _ in range(num_dimensions)]
        if 0 in shape:
            raise self._cursor.fail(f"{field} (shape)", f"{shape} has no elements")
        while len(shape) > 2 and shape[-1] == 1:
            shape.pop()
        return tuple(reversed(shape))

    def _read_tensor_type(self, field: str) -> QuantType:
        type_id = self._cursor.scalar(_U32, f"{field} (type)")
        kind = _TENSOR_TYPES.get(type_id)
        if kind is not None:
            return kind
        if type_id not in _OTHER_TENSOR_TYPES:
            raise self._cursor.fail(f"{field} (type)", f"{type_id} is no GGUF tensor type")
        known = ", ".join(kind.label for kind in QuantType)
        raise UnsupportedModelError(
            f"{self._file.path}: {field} (type): {_OTHER_TENSOR_TYPES[type_id]} is not supported; "
            f"supported are {known}"
        )

    def _place(self, tensors: list[TensorPlace], start: int) -> dict[str, TensorPlace]:
        places: dict[str, TensorPlace] = {}
        end = 0
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            info = tensor.info
            field = f"tensor {info.name!r}"
            num_rows = 1
            for extent in info.shape[:-1]:
                num_rows *= extent
            num_bytes = num_rows * info.type.row_bytes(info.shape[-1])
            if tensor.offset < end:
                raise self._cursor.fail(f"{field} (offset)", "overlaps the tensor before it")
            end = tensor.offset + num_bytes
            self._file.check_extent(start + tensor.offset, num_bytes, field)
            if info.name in places:
                raise self._cursor.fail(field, "comes twice")
            places[info.name] = TensorPlace(info, start + tensor.offset)
        return places
