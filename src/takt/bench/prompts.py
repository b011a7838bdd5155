"""Prompts of an exact length in tokens, each unlike all others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from takt.bench.http_client import ServerError
from takt.bench.token_counter import TokenCounter
from takt.bench.words import WORDS
from takt.bench.workload import PlannedRequest

_PARALLEL_COUNTS = 8
_MAX_TRIES = 8

OnPrompt = Callable[[], None]
T = TypeVar("T")


class PromptMaker:
    """Makes prompts of words that are one token each behind a space.

    A prompt's own part begins with words drawn by its index and the seed, so that no two prompts
    share a block, other than of a shared prefix. Without a `counter`, a word is taken for a token.
    """

    def __init__(self, counter: TokenCounter | None, words: Sequence[str], seed: int) -> None:
        self._counter = counter
        self._words = words
        self._seed = seed

    @classmethod
    async def create(cls, counter: TokenCounter | None, seed: int) -> PromptMaker:
        """Keeps the words that are one token. Raises `ServerError`."""
        if counter is None:
            return cls(None, WORDS, seed)
        base = await counter.count("the")
        counts = await _gather([counter.count(f"the {word}") for word in WORDS])
        words = [word for word, n in zip(WORDS, counts, strict=True) if n == base + 1]
        return cls(counter, words if len(words) >= 16 else WORDS, seed)

    @property
    def is_exact(self) -> bool:
        return self._counter is not None

    async def make(self, planned: Sequence[PlannedRequest], on_prompt: OnPrompt) -> list[str]:
        """A prompt for each request; raises `ServerError` if a length cannot be had."""

        async def one(request: PlannedRequest) -> str:
            prompt = await self._make_one(request)
            on_prompt()
            return prompt

        prompts = await _gather([one(request) for request in planned])
        if len(set(prompts)) != len(prompts):
            raise ServerError("two prompts are equal: they are too short to be told apart")
        return prompts

    async def _make_one(self, request: PlannedRequest) -> str:
        prefix: list[str] = []
        if request.prefix_id is not None:
            prefix = self._draw(f"prefix-{request.prefix_id}", request.num_prefix_tokens)
        goal = request.num_prompt_tokens
        # Twice as many as there should be: a tokenizer may join words.
        own = self._draw(f"prompt-{request.index}", 2 * goal)
        num_words = goal
        for _ in range(_MAX_TRIES):
            words = [*prefix, *own][: max(num_words, 1)]
            if len(words) <= len(prefix):
                break
            text = " ".join(words)
            if self._counter is None:
                return text
            count = await self._counter.count(text)
            if count == goal:
                return text
            num_words = max(len(words) + goal - count, 1)
        raise ServerError(
            f"no prompt of {goal} tokens could be made: what the server adds to a prompt leaves "
            "too few, or its tokenizer joins words; choose another length"
        )

    def _draw(self, name: str, count: int) -> list[str]:
        rng = random.Random(f"{self._seed}-{name}")
        return rng.choices(self._words, k=count)


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order; a few run at a time, and an error ends all."""
    limit = asyncio.Semaphore(_PARALLEL_COUNTS)

    async def limited(one: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await one

    return await asyncio.gather(*(limited(one) for one in work))
