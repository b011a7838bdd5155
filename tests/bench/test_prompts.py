from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from takt.bench.http_client import ServerError
from takt.bench.prompts import PromptMaker
from takt.bench.token_counter import TokenCounter
from takt.bench.words import WORDS
from takt.bench.workload import PlannedRequest


class Counter(TokenCounter):
    """Counts by a rule instead of a server."""

    def __init__(self, rule: Callable[[str], int]) -> None:
        self._rule = rule

    async def count(self, text: str) -> int:
        return self._rule(text)


def plan(index: int, num_tokens: int, prefix: tuple[int, int] | None = None) -> PlannedRequest:
    prefix_id, num_prefix = prefix if prefix is not None else (None, 0)
    return PlannedRequest(index, None, num_tokens, 1, prefix_id, num_prefix)


def make(
    rule: Callable[[str], int] | None, planned: list[PlannedRequest], seed: int = 0
) -> list[str]:
    async def work() -> list[str]:
        maker = await PromptMaker.create(None if rule is None else Counter(rule), seed)
        return await maker.make(planned, lambda: None)

    return asyncio.run(work())


def with_begin(text: str) -> int:
    return 1 + len(text.split())


def some_words_are_two(text: str) -> int:
    return 4 + sum(2 if len(word) > 6 else 1 for word in text.split())


def words_join(text: str) -> int:
    """Some neighbours are one token less together, which no single word shows."""
    words = text.split()
    return len(words) - sum(a < b for a, b in itertools.pairwise(words)) // 4


@pytest.mark.parametrize("rule", [with_begin, some_words_are_two, words_join])
def test_lengths_are_exact(rule: Callable[[str], int]) -> None:
    planned = [plan(i, n) for i, n in enumerate([8, 17, 100, 400, 401])]
    assert [rule(text) for text in make(rule, planned)] == [8, 17, 100, 400, 401]


def test_words_of_two_tokens_are_left_out() -> None:
    (text,) = make(some_words_are_two, [plan(0, 300)])
    assert max(len(word) for word in text.split()) <= 6


def test_prompts_differ_from_their_first_words_and_repeat_with_the_seed() -> None:
    planned = [plan(i, 50) for i in range(-3, 200)]
    texts = make(with_begin, planned)
    assert len({tuple(text.split()[:15]) for text in texts}) == len(planned)
    assert make(with_begin, planned) == texts
    assert set(make(with_begin, planned, seed=1)).isdisjoint(texts)


def test_a_shared_prefix_is_shared_and_no_more() -> None:
    planned = [plan(0, 60, (0, 40)), plan(1, 60, (0, 40)), plan(2, 60, (1, 40))]
    first, second, other = (text.split() for text in make(with_begin, planned))
    assert first[:40] == second[:40] != other[:40]
    assert first[40:] != second[40:]


def test_without_a_counter_a_word_is_a_token() -> None:
    (text,) = make(None, [plan(0, 25)])
    assert len(text.split()) == 25


def test_a_length_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(ServerError, match="no prompt of 3 tokens"):
        make(lambda text: 30 + len(text.split()), [plan(0, 3)])
    with pytest.raises(ServerError, match="no prompt of 45 tokens"):
        make(lambda text: 10 + len(text.split()), [plan(0, 45, (0, 40))])


def test_equal_prompts_are_an_error() -> None:
    planned = [plan(i, 1) for i in range(len(WORDS) + 1)]
    with pytest.raises(ServerError, match="two prompts are equal"):
        make(None, planned)
