"""How many blocks a sequence can need."""

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
