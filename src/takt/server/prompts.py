"""The prompts of a completions request: text or token ids, one or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from takt.errors import InvalidRequestError
from takt.loading.base import Tokenizer

MAX_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    text: str | None
    """None if the client gave token ids."""


def read_prompts(
    prompt: Any, tokenizer: Tokenizer, *, vocab_size: int, add_special_tokens: bool
) -> list[Prompt]:
    """Accepts a string, a list of strings, token ids, or a list of lists of token ids.

    Written markers of special tokens in a text are parsed: a raw prompt is the client's own.
    Token ids are taken as they are. Raises `InvalidRequestError` naming `prompt` for another
    shape, an id outside the vocabulary, or a prompt of no tokens.
    """
    shaped = _as_list(prompt)
    if len(shaped) > MAX_PROMPTS:
        raise _invalid(f"{len(shaped)} prompts in one request, more than {MAX_PROMPTS}")
    result = []
    for index, one in enumerate(shaped):
        if isinstance(one, str):
            token_ids = tokenizer.encode(one, parse_special=True, add_bos=add_special_tokens)
            result.append(Prompt(token_ids, one))
        else:
            _check_token_ids(one, vocab_size)
            result.append(Prompt(one, None))
        if not result[-1].token_ids:
            where = f"prompt[{index}]" if len(shaped) > 1 else "prompt"
            raise _invalid(f"{where} is empty: there is no token to begin from")
    return result


def num_prompt_chars(prompt: Any) -> int:
    """Characters that would have to be tokenised, of whatever a client sent."""
    return sum(len(text) for text in _texts(prompt))


def longest_prompt_chars(prompt: Any) -> int:
    return max((len(text) for text in _texts(prompt)), default=0)


def _texts(prompt: Any) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list):
        return [item for item in prompt if isinstance(item, str)]
    return []


def _as_list(prompt: Any) -> list[str | list[int]]:
    if prompt is None:
        raise _invalid("prompt is missing")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _invalid("prompt must be a string, a list of strings or token ids")
    if not prompt:
        raise _invalid("prompt is an empty list")
    if all(isinstance(item, str) for item in prompt):
        return list(prompt)
    if all(type(item) is int for item in prompt):
        return [prompt]
    if all(isinstance(item, list) for item in prompt):
        return list(prompt)
    raise _invalid("prompt mixes strings, token ids or lists: give all items one type")


def _check_token_ids(token_ids: list[Any], vocab_size: int) -> None:
    for token_id in token_ids:
        if type(token_id) is not int:
            raise _invalid(f"prompt: {str(token_id)[:32]!r} is not a token id")
        if not 0 <= token_id < vocab_size:
            raise _invalid(f"prompt: token id {token_id} is not between 0 and {vocab_size - 1}")


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="prompt")
