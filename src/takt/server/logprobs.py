"""Logprobs in the shapes of OpenAI's two APIs and of vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from takt.engine.messages import TokenLogprob
from takt.engine.text import TextStream
from takt.loading.base import Tokenizer
from takt.server.prompts import Prompt


def token_string(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token as text; a control token by its marker, a part of UTF-8 as `bytes:\xe2`."""
    raw = tokenizer.token_bytes(token_id)
    if not raw:
        return tokenizer.token_text(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionLogprobs:
    """The `logprobs` object of a completions choice; all lists have one entry per token."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self.tokens: list[str] = []
        self.token_logprobs: list[float | None] = []
        self.top_logprobs: list[dict[str, float] | None] = []
        self.text_offset: list[int] = []

    def add(self, token_id: int, logprob: TokenLogprob | None, text_offset: int) -> None:
        self.tokens.append(token_string(self._tokenizer, token_id))
        self.token_logprobs.append(None if logprob is None else logprob.logprob)
        self.top_logprobs.append(None if logprob is None else self._top(logprob))
        self.text_offset.append(text_offset)

    def add_prompt(
        self, prompt: Prompt, logprobs: Sequence[TokenLogprob | None], skip_special_tokens: bool
    ) -> None:
        """Adds a prompt's tokens; a position without an entry reports null, as the first does."""
        offsets = _prompt_offsets(self._tokenizer, prompt, skip_special_tokens)
        for i, token_id in enumerate(prompt.token_ids):
            self.add(token_id, logprobs[i] if i < len(logprobs) else None, offsets[i])

    def as_dict(self, num_chars: int | None = None) -> dict[str, Any]:
        """Offsets behind the end of a text that was cut are its end."""
        offsets = self.text_offset
        if num_chars is not None:
            offsets = [min(offset, num_chars) for offset in offsets]
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs if self._num_top else None,
            "text_offset": offsets,
        }

    def _top(self, logprob: TokenLogprob) -> dict[str, float]:
        """Two tokens may read the same; the likelier one keeps the place."""
        result: dict[str, float] = {}
        for token_id, value in logprob.top[: self._num_top]:
            result.setdefault(token_string(self._tokenizer, token_id), value)
        result.setdefault(token_string(self._tokenizer, logprob.token_id), logprob.logprob)
        return result


def _prompt_offsets(tokenizer: Tokenizer, prompt: Prompt, skip_special_tokens: bool) -> list[int]:
    """Where each token's text begins in the echoed prompt.

    A text that the client wrote holds its markers, but not the begin token that we put in front.
    """
    text = prompt.text
    stream = TextStream(tokenizer, skip_special_tokens=skip_special_tokens and text is None)
    offsets: list[int] = []
    for i, token_id in enumerate(prompt.token_ids):
        offsets.append(stream.num_chars)
        is_bos = i == 0 and token_id == tokenizer.bos_token_id
        if is_bos and text is not None and not text.startswith(tokenizer.token_text(token_id)):
            continue
        stream.push(token_id)
    return offsets


def chat_logprob(tokenizer: Tokenizer, logprob: TokenLogprob, num_top: int) -> dict[str, Any]:
    """One entry of a chat choice's `logprobs.content`."""
    return {
        **_chat_token(tokenizer, logprob.token_id, logprob.logprob),
        "top_logprobs": [
            _chat_token(tokenizer, token_id, value) for token_id, value in logprob.top[:num_top]
        ],
    }


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob | None]
) -> list[dict[str, Any] | None]:
    """vLLM's shape: per prompt token a map from token id to logprob, rank and text."""
    return [None if entry is None else _ranked(tokenizer, entry) for entry in entries]


def _ranked(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, Any]:
    result = {
        str(token_id): _rank(tokenizer, token_id, value, rank)
        for rank, (token_id, value) in enumerate(entry.top, 1)
    }
    result.setdefault(
        str(entry.token_id), _rank(tokenizer, entry.token_id, entry.logprob, entry.rank)
    )
    return result


def _rank(tokenizer: Tokenizer, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
    return {
        "logprob": logprob,
        "rank": rank,
        "decoded_token": token_string(tokenizer, token_id),
    }


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_string(tokenizer, token_id),
        "logprob": logprob,
        "bytes": list(tokenizer.token_bytes(token_id)),
    }
