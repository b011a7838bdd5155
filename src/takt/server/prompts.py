"""The prompts of a completions request: text or token ids, one or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from takt.errors import InvalidRequestError
from takt.loading.base import Tokenizer

MAX_PROMPTS = 1024

PromptList = list[str | list[int]]


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    text: str | None
    """None if the client gave token ids."""


def list_prompts(prompt: Any) -> PromptList:
    """Accepts a string, a list of strings, token ids, or a list of lists of token ids.

    Raises `InvalidRequestError` naming `prompt` for another shape or too many. Whether ids are ids
    is left to `read_prompts`: here no more than `MAX_PROMPTS` items are looked at.
    """
    if prompt is None:
        raise _invalid("prompt is missing")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _invalid("prompt must be a string, a list of strings or token ids")
    if not prompt:
        raise _invalid("prompt is an empty list")
    kind = type(prompt[0])
    if kind is not str and kind is not list:
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise _invalid(f"{len(prompt)} prompts in one request, more than {MAX_PROMPTS}")
    if any(type(item) is not kind for item in prompt):
        raise _invalid("prompt mixes strings, token ids or lists: give all items one type")
    return prompt


def longest_prompt(prompts: PromptList, max_token_chars: int) -> int:
    """Tokens that the longest prompt has at least; a text is not tokenised for that."""
    return max(len(one) // max_token_chars if isinstance(one, str) else len(one) for one in prompts)


def prompts_size(prompts: PromptList) -> int:
    """Characters and ids that have to be gone through."""
    return sum(map(len, prompts))


def read_prompts(
    prompts: PromptList, tokenizer: Tokenizer, *, vocab_size: int, add_special_tokens: bool
) -> list[Prompt]:
    """Tokenises texts and checks token ids.

    Written markers of special tokens in a text are parsed: a raw prompt is the client's own.
    Token ids are taken as they are. Raises `InvalidRequestError` naming `prompt` for an id outside
    the vocabulary, what is no id, or a prompt of no tokens.
    """
    result = []
    for index, one in enumerate(prompts):
        if isinstance(one, str):
            token_ids = tokenizer.encode(one, parse_special=True, add_bos=add_special_tokens)
            result.append(Prompt(token_ids, one))
        else:
            _check_token_ids(one, vocab_size)
            result.append(Prompt(one, None))
        if not result[-1].token_ids:
            where = f"prompt[{index}]" if len(prompts) > 1 else "prompt"
            raise _invalid(f"{where} is empty: there is no token to begin from")
    return result


def _check_token_ids(token_ids: list[Any], vocab_size: int) -> None:
    for token_id in token_ids:
        if type(token_id) is not int:
            raise _invalid(f"prompt: {str(token_id)[:32]!r} is not a token id")
        if not 0 <= token_id < vocab_size:
            raise _invalid(f"prompt: token id {token_id} is not between 0 and {vocab_size - 1}")


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="prompt")
