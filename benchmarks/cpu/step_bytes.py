"""Bytes that a decode step of SmolLM2-135M reads, as its pinned Q4_1 file stores it."""

from __future__ import annotations

WEIGHT_BYTES = 66_400_000 + 30_100_000
"""Layers in Q4_1, and the tied head in Q8_0."""

KV_BYTES_PER_TOKEN = 30 * 2 * 3 * (64 + 2)
"""Layers x (K, V) x KV heads x (head_dim of int8 and a scale)."""


def step_bytes(context: int) -> int:
    return WEIGHT_BYTES + KV_BYTES_PER_TOKEN * context


LOOP_BYTES = WEIGHT_BYTES + 30 * 2 * 3 * 64 * 2 * 464
"""107 MB: of the mean context of 400 prompt tokens and 128 of output, were K and V in bf16. The
loop reads the same whatever the layout of the step that is measured by it."""
