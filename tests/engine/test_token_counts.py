"""Counts of generated tokens, against counting from scratch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from takt.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 30), max_size=40)


@given(prompt=TOKENS, chunks=st.lists(TOKENS, max_size=6))
def test_counts_kept_up_step_by_step_equal_counts_from_scratch(
    prompt: list[int], chunks: list[list[int]]
) -> None:
    counts = TokenCounts(prompt)
    tokens, output = list(prompt), list[int]()
    for chunk in chunks:
        tokens += chunk
        output += chunk
        counts.update(tokens)
        kept = dict(zip(counts.tokens.tolist(), counts.counts.tolist(), strict=True))
        assert len(kept) == len(counts.tokens)
        assert kept == {token: output.count(token) for token in tokens}
