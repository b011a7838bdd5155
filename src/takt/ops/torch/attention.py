"""Rope, the paged KV cache and attention over it, one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from takt.ops.base import AttentionSpec
from takt.types.kv import KVCacheSpec, KVDtype

# Pools hold what attention reads. fp8 and int8 are held as the fp32 numbers that they stand for:
# torch indexes no fp8, and an int8 alone means nothing.
_TORCH_DTYPE = {
    KVDtype.BF16: torch.bfloat16,
    KVDtype.F32: torch.float32,
    KVDtype.FP8_E4M3: torch.float32,
    KVDtype.INT8: torch.float32,
}
_MAX_E4M3 = 448.0
_SPLIT = 256
"""Positions whose weights are relative to the largest among them; at absolute multiples of it."""


class KVPools:
    """Per layer, K and V as `[num_blocks, num_kv_heads, block_size, head_dim]`; never zeroed."""

    def __init__(self, spec: KVCacheSpec, num_blocks: Sequence[int], device: torch.device) -> None:
        self.spec = spec
        self.pools: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for group, count in zip(spec.groups, num_blocks, strict=True):
            shape = (count, spec.num_kv_heads, spec.block_size, spec.head_dim)
            for layer in group.layers:
                k = torch.empty(shape, dtype=_TORCH_DTYPE[spec.dtype], device=device)
                self.pools[layer] = (k, torch.empty_like(k))

    def copy_block(self, group: int, source: int, destination: int) -> None:
        for layer in self.spec.groups[group].layers:
            for pool in self.pools[layer]:
                pool[destination] = pool[source]

    def store(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes `[num_tokens, num_kv_heads, head_dim]` of k and v to their slots."""
        blocks, offsets = slots // self.spec.block_size, slots % self.spec.block_size
        for pool, values in zip(self.pools[layer], (k, v), strict=True):
            pool[blocks, :, offsets] = rounded(values, self.spec.dtype).to(pool.dtype)

    def gather(
        self, layer: int, block_table: torch.Tensor, first: int, last: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of positions [first, last) as fp32 `[last - first, num_kv_heads, head_dim]`."""
        positions = torch.arange(first, last, device=block_table.device)
        blocks = block_table[positions // self.spec.block_size].long()
        offsets = positions % self.spec.block_size
        k, v = self.pools[layer]
        return k[blocks, :, offsets].float(), v[blocks, :, offsets].float()


def rounded(values: torch.Tensor, dtype: KVDtype) -> torch.Tensor:
    """fp32 `[..., head_dim]` as the cache gives it back, but for bf16's rounding by a cast."""
    if dtype is KVDtype.FP8_E4M3:
        return values.clamp(-_MAX_E4M3, _MAX_E4M3).to(torch.float8_e4m3fn).float()
    if dtype is KVDtype.INT8:
        # The largest size over 127 as a bf16, rounded up, so that no code is beyond 127.
        largest = values.abs().amax(dim=-1, keepdim=True) / 127.0
        scale = ((largest.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
        inverse = torch.where(scale > 0.0, 1.0 / scale, 0.0)
        return (values * inverse).round() * scale
    return values


def rotate(x: torch.Tensor, positions: np.ndarray, attention: AttentionSpec) -> torch.Tensor:
    """Rope on `[num_tokens, heads, head_dim]`; angles are taken in float64."""
    angles = positions.astype(np.float64)[:, None] * attention.inv_freq[None, :]
    magnitude = attention.rope_magnitude
    cos = torch.from_numpy(np.cos(angles) * magnitude).to(x)[:, None, :]
    sin = torch.from_numpy(np.sin(angles) * magnitude).to(x)[:, None, :]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_positions: torch.Tensor,
    first_position: int,
    attention: AttentionSpec,
    kv_dtype: KVDtype,
) -> torch.Tensor:
    """Causal attention of one sequence.

    q is `[num_queries, num_heads, head_dim]`; k and v are `[num_keys, num_kv_heads, head_dim]` of
    the positions from `first_position` on. Returns the shape of q. With a cache of bf16, scaled
    queries and weights are bf16 too.
    """
    # [num_queries, num_kv_heads, heads per KV head, head_dim]
    grouped = q.view(q.shape[0], attention.num_kv_heads, -1, attention.head_dim) * attention.scale
    if kv_dtype is KVDtype.BF16:
        grouped = grouped.bfloat16().float()
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k)
    if attention.logit_softcap > 0.0:
        scores = torch.tanh(scores / attention.logit_softcap) * attention.logit_softcap
    key_positions = torch.arange(first_position, first_position + k.shape[0], device=q.device)
    distance = query_positions[:, None] - key_positions[None, :]
    visible = distance >= 0
    if attention.window is not None:
        visible &= distance < attention.window
    scores = scores.masked_fill(~visible, -torch.inf)
    if kv_dtype is KVDtype.BF16:
        weights = _bf16_weights(scores, key_positions // _SPLIT)
    else:
        weights = scores.softmax(dim=-1)
    return torch.einsum("hgqk,khd->qhgd", weights, v).flatten(1, 2)


def _bf16_weights(scores: torch.Tensor, split_of_key: torch.Tensor) -> torch.Tensor:
    """Softmax of `[..., num_keys]` whose terms are rounded before they meet V, as they are made."""
    top = torch.empty_like(scores)
    for split in range(int(split_of_key[0]), int(split_of_key[-1]) + 1):
        keys = split_of_key == split
        top[..., keys] = scores[..., keys].amax(dim=-1, keepdim=True)
    top = top.clamp(min=torch.finfo(top.dtype).min)  # a split of which nothing is visible
    terms = (scores - top).exp()
    shares = (top - top.amax(dim=-1, keepdim=True)).exp()
    return terms.bfloat16().float() * shares / (terms * shares).sum(dim=-1, keepdim=True)
