"""Rope, the paged KV cache and attention over it, one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
_MAX_FACTOR = 127 * 128
_SPLIT = 256
"""Positions whose weights are relative to the largest among them; at absolute multiples of it."""


class KVPools:
    """Per layer, K and V as `[num_blocks, num_kv_heads, block_size, head_dim]`; never zeroed.

    Of int8 also V's scales, `[num_blocks, num_kv_heads, block_size]`: weights are rounded by them.
    """

    def __init__(self, spec: KVCacheSpec, num_blocks: Sequence[int], device: torch.device) -> None:
        self.spec = spec
        self.pools: dict[int, tuple[torch.Tensor, ...]] = {}
        for group, count in zip(spec.groups, num_blocks, strict=True):
            shape = (count, spec.num_kv_heads, spec.block_size, spec.head_dim)
            for layer in group.layers:
                k = torch.empty(shape, dtype=_TORCH_DTYPE[spec.dtype], device=device)
                self.pools[layer] = (k, torch.empty_like(k))
                if spec.dtype is KVDtype.INT8:
                    self.pools[layer] += (torch.empty_like(k[..., 0]),)

    def copy_block(self, group: int, source: int, destination: int) -> None:
        for layer in self.spec.groups[group].layers:
            for pool in self.pools[layer]:
                pool[destination] = pool[source]

    def store(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Writes `[num_tokens, num_kv_heads, head_dim]` of k and v to their slots."""
        blocks, offsets = slots // self.spec.block_size, slots % self.spec.block_size
        dtype, pools = self.spec.dtype, self.pools[layer]
        for pool, values in zip(pools[:2], (k, v), strict=True):
            pool[blocks, :, offsets] = rounded(values, dtype).to(pool.dtype)
        if dtype is KVDtype.INT8:
            pools[2][blocks, :, offsets] = _int8_scale(v).squeeze(-1)

    def gather(
        self, layer: int, block_table: torch.Tensor, first: int, last: int
    ) -> tuple[torch.Tensor, ...]:
        """K and V of positions [first, last) as fp32 `[last - first, num_kv_heads, head_dim]`; of
        int8 then V's scales, `[last - first, num_kv_heads]`."""
        positions = torch.arange(first, last, device=block_table.device)
        blocks = block_table[positions // self.spec.block_size].long()
        offsets = positions % self.spec.block_size
        return tuple(pool[blocks, :, offsets].float() for pool in self.pools[layer])


def rounded(values: torch.Tensor, dtype: KVDtype) -> torch.Tensor:
    """fp32 `[..., head_dim]` as the cache gives it back, but for bf16's rounding by a cast."""
    if dtype is KVDtype.FP8_E4M3:
        return values.clamp(-_MAX_E4M3, _MAX_E4M3).to(torch.float8_e4m3fn).float()
    if dtype is KVDtype.INT8:
        scale = _int8_scale(values)
        inverse = torch.where(scale > 0.0, 1.0 / scale, 0.0)
        return (values * inverse).round() * scale
    return values


def _int8_scale(values: torch.Tensor) -> torch.Tensor:
    """`[..., 1]`: the largest size over 127 as a bf16, rounded up: no code is beyond 127."""
    largest = values.abs().amax(dim=-1, keepdim=True) / 127.0
    return ((largest.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)


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
    kv: tuple[torch.Tensor, ...],
    query_positions: torch.Tensor,
    first_position: int,
    attention: AttentionSpec,
    kv_dtype: KVDtype,
) -> torch.Tensor:
    """Causal attention of one sequence.

    q is `[num_queries, num_heads, head_dim]`; `kv` is what `KVPools.gather` gives of the positions
    from `first_position` on. Returns the shape of q. With a cache of bf16, scaled queries and
    weights are bf16 too; with one of int8 both are whole numbers of 15 bits.
    """
    k, v, *scales = kv
    # [num_queries, num_kv_heads, heads per KV head, head_dim]
    grouped = q.view(q.shape[0], attention.num_kv_heads, -1, attention.head_dim) * attention.scale
    if kv_dtype is KVDtype.INT8:
        grouped = _rounded_to(grouped.abs().amax(dim=-1, keepdim=True) / _MAX_FACTOR, grouped)
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
    splits = key_positions // _SPLIT
    if kv_dtype is KVDtype.BF16:
        weights = _split_softmax(scores, splits, lambda terms: terms.bfloat16().float())
    elif kv_dtype is KVDtype.INT8:
        # [num_kv_heads, 1, 1, num_keys]
        scale = scales[0].T[:, None, None, :].clamp(min=2.0**-100)
        seen = torch.where(visible, scale, 0.0)
        unit = _of_splits(seen, splits) / _MAX_FACTOR
        weights = _split_softmax(
            scores, splits, lambda terms: _rounded_to(unit, terms * scale) / scale
        )
    else:
        weights = scores.softmax(dim=-1)
    return torch.einsum("hgqk,khd->qhgd", weights, v).flatten(1, 2)


def _rounded_to(unit: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Multiples of a unit."""
    unit = unit.clamp(min=2.0**-120)
    return (values / unit).round() * unit


def _of_splits(values: torch.Tensor, split_of_key: torch.Tensor) -> torch.Tensor:
    """`[..., num_keys]`: the largest of each one's split."""
    top = torch.empty_like(values)
    for split in range(int(split_of_key[0]), int(split_of_key[-1]) + 1):
        keys = split_of_key == split
        top[..., keys] = values[..., keys].amax(dim=-1, keepdim=True)
    return top


def _split_softmax(
    scores: torch.Tensor,
    split_of_key: torch.Tensor,
    rounded_terms: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Softmax of `[..., num_keys]` whose terms are rounded before they meet V, as they are made."""
    top = _of_splits(scores, split_of_key)
    top = top.clamp(min=torch.finfo(top.dtype).min)  # a split of which nothing is visible
    terms = (scores - top).exp()
    shares = (top - top.amax(dim=-1, keepdim=True)).exp()
    return rounded_terms(terms) * shares / (terms * shares).sum(dim=-1, keepdim=True)
