"""How many blocks sequences can need, and how a memory budget becomes pools."""

from __future__ import annotations

from takt.types.kv import KVCacheSpec


def blocks_for_tokens(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def window_blocks(window: int, num_in_flight_tokens: int, block_size: int) -> int:
    """Most blocks of a sliding window that one sequence holds at a time.

    A step reads `window - 1` positions before its first token. Steps in flight hold up to
    `num_in_flight_tokens` more, and blocks are let go only when a block border is crossed, which
    lags by `block_size - 1`. A span of L positions touches at most ceil((L - 1) / size) + 1 blocks.
    """
    span = window - 1 + num_in_flight_tokens + block_size - 1
    return blocks_for_tokens(span - 1, block_size) + 1


def peak_blocks(spec: KVCacheSpec, group: int, num_tokens: int, num_in_flight_tokens: int) -> int:
    """Most blocks of a group that a sequence of `num_tokens` holds at a time, shared or not."""
    blocks = blocks_for_tokens(num_tokens, spec.block_size)
    window = spec.groups[group].window
    if window is None:
        return blocks
    return min(blocks, window_blocks(window, num_in_flight_tokens, spec.block_size))


def blocks_for_memory(
    spec: KVCacheSpec,
    num_bytes: int | None,
    *,
    max_num_seqs: int,
    max_model_len: int,
    max_in_flight_tokens: int,
) -> list[int]:
    """Blocks of each group that `num_bytes` can hold; None gives what could ever be used.

    Short sequences use as many blocks of a window as of full attention, so groups grow together;
    a window stops at what `max_num_seqs` sequences can hold of it. Blocks may be 0 when the memory
    is too small for one block of each group.
    """
    groups = range(len(spec.groups))
    limits = [
        max_num_seqs * peak_blocks(spec, group, max_model_len, max_in_flight_tokens)
        for group in groups
    ]
    if num_bytes is None:
        return limits
    # Largest level with sum over groups of min(level, limit) * bytes within the budget: the cost
    # is piecewise linear in the level, so each group that is full leaves the rest more.
    counts = [0] * len(limits)
    remaining, level = num_bytes, 0
    for limit in sorted(set(limits)):
        growing = [group for group in groups if limits[group] > level]
        level_bytes = sum(spec.block_bytes(group) for group in growing)
        step = min(limit - level, remaining // level_bytes)
        for group in growing:
            counts[group] += step
        remaining -= step * level_bytes
        if step < limit - level:
            break
        level = limit
    return counts
