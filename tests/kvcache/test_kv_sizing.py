"""Bounds on what one sequence holds, against sequences that run."""

from __future__ import annotations

from collections import deque

import pytest

from kv_memory import kv_spec
from takt.kvcache.manager import KVCacheManager
from takt.kvcache.sizing import peak_blocks

NUM_TOKENS = 150


def most_held(window: int, chunk: int, first_chunk: int, num_steps_in_flight: int) -> int:
    """Most blocks of a window that a sequence holds when steps are committed late."""
    kv = KVCacheManager(kv_spec((window,)), [100], False)
    kv.create("a")
    pending: deque[int] = deque()
    end, most = 0, 0
    while end < NUM_TOKENS:
        end = min(NUM_TOKENS, end + (chunk if end else first_chunk))
        kv.append("a", end)
        most = max(most, kv.num_used_blocks)
        pending.append(end)
        if len(pending) == num_steps_in_flight:
            committed = pending.popleft()
            kv.commit("a", [0] * committed, committed)
    return most


@pytest.mark.parametrize("num_steps_in_flight", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16])
@pytest.mark.parametrize("window", [1, 2, 5, 8, 13])
def test_window_bound_holds_and_is_tight(window: int, chunk: int, num_steps_in_flight: int) -> None:
    bound = peak_blocks(kv_spec((window,)), 0, NUM_TOKENS, chunk * num_steps_in_flight)
    # The alignment of chunks with blocks is set by the first.
    most = max(
        most_held(window, chunk, first_chunk, num_steps_in_flight)
        for first_chunk in range(1, chunk + 1)
    )
    assert bound - 1 <= most <= bound


def test_short_sequences_need_no_more_than_their_tokens() -> None:
    spec = kv_spec((None, 8))
    assert peak_blocks(spec, 0, 9, 100) == 3
    assert peak_blocks(spec, 1, 9, 100) == 3
    assert peak_blocks(spec, 1, 1000, 1) == 4
