"""Checked access to what a GGUF file says about its tokenizer."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models

from takt.errors import ModelError

SPACE = "\u2581"
STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

_MARKER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


class TokenType(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]

    def special_ids(self, fields: TokenizerFields) -> frozenset[int]:
        """Control tokens, and begin and end tokens that look like one though not typed so."""
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN)
        special = {index for index, kind in enumerate(self.types) if kind in kinds}
        for key in ("bos_token_id", *STOP_KEYS):
            token_id = fields.token_id(key, len(self.tokens))
            if token_id is not None and _MARKER.fullmatch(self.tokens[token_id]):
                special.add(token_id)
        return frozenset(special)

    def added_tokens(self, special: frozenset[int]) -> list[AddedToken]:
        """Tokens that are found in a text before anything is merged."""
        return [
            AddedToken(token, normalized=False, special=index in special)
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if token and (kind == TokenType.USER_DEFINED or index in special)
        ]

    def with_spaces_spelt(self, fields: TokenizerFields) -> GGUFVocabulary:
        """Runs of spaces that the file gives as such are merged in the vocabulary's spelling."""
        tokens = [
            SPACE * len(token) if token and not token.strip(" ") else token for token in self.tokens
        ]
        return GGUFVocabulary(tokens, self.types, fields.ids_of(tokens))

    def ranks(self, scores: list[float]) -> dict[str, float]:
        """Scores of the pieces that text may merge into.

        Files give user-defined pieces the score -1000, as they are found before merging; the
        vocabulary itself ranks them first.
        """
        mergeable = (TokenType.NORMAL, TokenType.USER_DEFINED)
        return {
            token: 0.0 if kind == TokenType.USER_DEFINED else score
            for token, kind, score in zip(self.tokens, self.types, scores, strict=True)
            if kind in mergeable
        }


class TokenizerFields:
    """Checked access to the `tokenizer.ggml.` keys."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.metadata = metadata

    def fail(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self.path}: tokenizer.ggml.{key}: {problem}")

    def strings(self, key: str) -> list[str]:
        return self._array(key, str, "strings")

    def numbers(self, key: str, count: int) -> list[float]:
        values: list[float] = self._array(key, float, "floats")
        if len(values) != count:
            raise self.fail(key, f"has {len(values)} entries for {count} tokens")
        if any(map(math.isnan, values)):
            raise self.fail(key, "holds NaN")
        return values

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise self.fail(key, f"{value!r} is not a boolean")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            raise self.fail(key, f"{value!r} is no id of the {vocab_size} tokens")
        return value

    def vocabulary(self) -> GGUFVocabulary:
        tokens = self.strings("tokens")
        if not tokens:
            raise self.fail("tokens", "is empty")
        types = [int(TokenType.NORMAL)] * len(tokens)
        if "tokenizer.ggml.token_type" in self.metadata:
            types = self._array("token_type", int, "integers")
        if len(types) != len(tokens):
            raise self.fail("token_type", f"has {len(types)} entries for {len(tokens)} tokens")
        return GGUFVocabulary(tokens, types, self.ids_of(tokens))

    def ids_of(self, tokens: list[str]) -> dict[str, int]:
        ids = {token: index for index, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
            raise self.fail("tokens", f"{twice!r} comes twice")
        return ids

    def bpe(self, ids: dict[str, int], merges: list[Any], **options: Any) -> models.BPE:
        try:
            return models.BPE(ids, merges, **options)
        except Exception as error:  # The library raises bare exceptions for bad merges.
            raise self.fail("merges", str(error)) from None

    def _array(self, key: str, kind: type, what: str) -> list[Any]:
        values = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, list):
            raise self.fail(key, "is missing" if values is None else "is not an array")
        if not set(map(type, values)) <= {kind}:
            raise self.fail(key, f"is not an array of {what}")
        return values
