"""A rank's part of the KV cache."""

from __future__ import annotations

from dataclasses import replace

from takt.parallel.shard import Shard
from takt.types.kv import KVCacheSpec, KVGroupSpec


def rank_kv_spec(spec: KVCacheSpec, shard: Shard) -> KVCacheSpec:
    """The KV heads and layers of a shard, layers counted from its first.

    Groups keep their numbers, and may have no layer here: block tables are one for all ranks.
    """
    first, end = shard.layers
    groups = tuple(
        KVGroupSpec(tuple(i - first for i in group.layers if first <= i < end), group.window)
        for group in spec.groups
    )
    return replace(spec, groups=groups, num_kv_heads=shard.kv_heads.size)


def total_kv_heads(shard: Shard) -> int:
    """KV heads of a layer that the ranks of a group hold together, copies counted."""
    return shard.kv_heads.size * shard.tensor_size
