"""What the KV cache stores for a model, as its layers declare it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class KVDtype(enum.Enum):
    BF16 = ("bf16", 2)
    F32 = ("float32", 4)

    def __init__(self, label: str, element_bytes: int) -> None:
        self.label = label
        self.element_bytes = element_bytes


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
    """Per layer, K and V are each `[num_blocks, num_kv_heads, block_size, head_dim]`."""

    groups: tuple[KVGroupSpec, ...]
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVDtype

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of a group, K and V of all its layers."""
        per_layer = (
            2 * self.num_kv_heads * self.block_size * self.head_dim * self.dtype.element_bytes
        )
        return per_layer * len(self.groups[group].layers)
