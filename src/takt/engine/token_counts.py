"""How often a sequence has generated each token, for penalties; kept up as tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class TokenCounts:
    """Distinct tokens of one sequence in order of appearance, with times generated.

    A token that only the prompt holds counts 0: the repetition penalty applies to it, presence and
    frequency penalties don't.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._place = {token: place for place, token in enumerate(distinct)}
        self._tokens = np.fromiter(distinct, dtype=np.int32, count=len(distinct))
        self._counts = np.zeros(len(distinct), dtype=np.int32)
        self._num_seen = len(prompt_token_ids)

    def update(self, token_ids: Sequence[int]) -> None:
        """Counts what `token_ids` (prompt and output) holds beyond what was counted before."""
        for token in token_ids[self._num_seen :]:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._tokens):
                self._grow()
            self._tokens[place] = token
            self._counts[place] += 1
        self._num_seen = len(token_ids)

    @property
    def tokens(self) -> np.ndarray:
        """int32 `[num_distinct]`."""
        return self._tokens[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        """int32 `[num_distinct]`."""
        return self._counts[: len(self._place)]

    def _grow(self) -> None:
        more = max(64, len(self._tokens))
        self._tokens = np.concatenate([self._tokens, np.zeros(more, dtype=np.int32)])
        self._counts = np.concatenate([self._counts, np.zeros(more, dtype=np.int32)])
