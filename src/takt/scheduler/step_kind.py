"""Kinds of steps: within one, residuals of a model are alike."""

from __future__ import annotations

from takt.scheduler.step_time import StepFeatures

_SIZES = (1, 4, 16, 64)
_CHUNKS = (32, 128, 512)
NUM_KINDS = len(_SIZES) + 1 + len(_CHUNKS) + 1

PROMPT_KINDS = tuple(
    (kind, least, most)
    for kind, (least, most) in enumerate(
        zip((1, *(chunk + 1 for chunk in _CHUNKS)), (*_CHUNKS, 1 << 62), strict=True),
        start=len(_SIZES) + 1,
    )
)[::-1]
"""Kinds with a prompt, and the tokens from which and to which they reach; the largest first."""


def kind_of(features: StepFeatures) -> int:
    """Without a prompt by sequences, else by the prompt's tokens; below `NUM_KINDS`."""
    seqs, tokens = features[0], features[1]
    if tokens == 0:
        kind = 0
        for size in _SIZES:
            if seqs <= size:
                return kind
            kind += 1
        return kind
    kind = len(_SIZES) + 1
    for chunk in _CHUNKS:
        if tokens <= chunk:
            return kind
        kind += 1
    return kind
