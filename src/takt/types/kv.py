"""What the KV cache stores for a model, as its layers declare it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class KVDtype(enum.Enum):
    """How an element of K or V is stored: name, its bytes, and those of a scale beside a head."""

    BF16 = ("bfloat16", 2, 0)
    F32 = ("float32", 4, 0)
    FP8_E4M3 = ("fp8_e4m3", 1, 0)
    """Rounded to nearest even, saturated at 448; no scale."""
    INT8 = ("int8", 1, 2)
    """-127 to 127 times a bf16 scale of each token and head."""

    def __init__(self, label: str, element_bytes: int, scale_bytes: int) -> None:
        self.label = label
        self.element_bytes = element_bytes
        self.scale_bytes = scale_bytes

    @classmethod
    def of_label(cls, label: str) -> KVDtype:
        return next(dtype for dtype in cls if dtype.label == label)

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of one token's K, or V, of one head."""
        return head_dim * self.element_bytes + self.scale_bytes


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers that share one block table: all of full attention, or all of one sliding window.

    `layers` are indices into the model's layers. `window` is the number of positions a token may
    look back on, itself included; None is full attention.
    """

    layers: tuple[int, ...]
    window: int | None


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Per layer, K and V are each `[num_blocks, num_kv_heads, block_size, head_dim]`; scales, where
    the dtype has them, lie in their block.
    """

    groups: tuple[KVGroupSpec, ...]
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVDtype

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of a group, K and V of all its layers."""
        per_layer = 2 * self.num_kv_heads * self.block_size * self.dtype.head_bytes(self.head_dim)
        return per_layer * len(self.groups[group].layers)
