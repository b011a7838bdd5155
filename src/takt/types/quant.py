"""Tensors as a model file stores them: raw bytes, a storage type, a logical shape."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np


class QuantType(enum.Enum):
    """Storage type of a tensor: name, elements per group, bytes per group.

    Groups run along the last (contiguous) dimension; sizes are those of the GGUF format.
    """

    F32 = ("f32", 1, 4)
    F16 = ("f16", 1, 2)
    BF16 = ("bf16", 1, 2)
    Q4_0 = ("q4_0", 32, 18)
    Q4_1 = ("q4_1", 32, 20)
    Q5_0 = ("q5_0", 32, 22)
    Q5_1 = ("q5_1", 32, 24)
    Q8_0 = ("q8_0", 32, 34)
    Q4_K = ("q4_k", 256, 144)
    Q5_K = ("q5_k", 256, 176)
    Q6_K = ("q6_k", 256, 210)

    def __init__(self, label: str, group_size: int, group_bytes: int) -> None:
        self.label = label
        self.group_size = group_size
        self.group_bytes = group_bytes

    def row_bytes(self, num_columns: int) -> int:
        """Bytes of one row of `num_columns` elements; they must fill whole groups."""
        if num_columns % self.group_size:
            raise ValueError(
                f"{num_columns} columns do not fill whole groups of {self.group_size} "
                f"({self.label})"
            )
        return num_columns // self.group_size * self.group_bytes


FLOAT_TYPES = frozenset({QuantType.F32, QuantType.F16, QuantType.BF16})

CONVERTIBLE_TO = FLOAT_TYPES | {QuantType.Q8_0, QuantType.Q4_1}
"""Types that matrices of any type can be packed as."""


@dataclass(frozen=True, slots=True)
class QuantTensor:
    """A matrix or vector in its storage type.

    `raw` is uint8 `[num_rows, row_bytes]`, C-contiguous; a vector has one row.
    `shape` is the logical shape, `[num_rows, num_columns]` or `[num_columns]`. `packed_type` asks
    `Ops` to convert the matrix while it packs it (see `CONVERTIBLE_TO`); None keeps `type`.
    `name` is for messages.
    """

    raw: np.ndarray
    type: QuantType
    shape: tuple[int, ...]
    packed_type: QuantType | None = None
    name: str = ""

    @property
    def num_columns(self) -> int:
        return self.shape[-1]

    @property
    def num_rows(self) -> int:
        return 1 if len(self.shape) == 1 else self.shape[0]
