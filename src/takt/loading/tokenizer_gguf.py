"""Tokenizers from the metadata of GGUF files: byte-level BPE and SentencePiece vocabularies."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.merges import cached_merges, derive_merges
from takt.loading.model_tokenizer import ModelTokenizer, Spelling, TokenizerSpec
from takt.loading.pre_tokenizers import pre_tokenizer_named
from takt.loading.stop_tokens import stop_token_ids

_SPACE = "\u2581"
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class _TokenType(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gguf_tokenizer(path: Path, metadata: Mapping[str, Any]) -> ModelTokenizer:
    """Raises `ModelError` for broken metadata, `UnsupportedModelError` for an unknown kind."""
    fields = _Fields(path, metadata)
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(fields)
    if kind == "llama":
        return _sentencepiece(fields)
    what = "is missing" if kind is None else f"{kind!r} is unknown"
    raise UnsupportedModelError(f"{path}: tokenizer.ggml.model: {what}; known are gpt2, llama")


def _byte_level(fields: _Fields) -> ModelTokenizer:
    split = pre_tokenizer_named(fields.metadata.get("tokenizer.ggml.pre"), str(fields.path))
    vocabulary = fields.vocabulary()
    lines = fields.strings("merges")
    merges = [tuple(line.split(" ", 1)) for line in lines]
    broken = next((line for line, pair in zip(lines, merges, strict=True) if len(pair) != 2), None)
    if broken is not None:
        raise fields.fail("merges", f"{broken!r} is not two tokens")
    model = fields.bpe(vocabulary.ids, merges, ignore_merges=split.ignore_merges)
    tokenizer = tokenizers.Tokenizer(model)
    split.install(tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(vocabulary.added_tokens())
    special = vocabulary.special_ids(fields)
    spec = _spec(fields, tokenizer, special, Spelling.BYTE_LEVEL, split.adds_bos)
    return ModelTokenizer(tokenizer, spec)


def _sentencepiece(fields: _Fields) -> ModelTokenizer:
    if fields.flag("remove_extra_whitespaces", default=False):
        raise UnsupportedModelError(
            f"{fields.path}: tokenizer.ggml.remove_extra_whitespaces: true is not supported"
        )
    vocabulary = fields.vocabulary().with_spaces_spelt(fields)
    scores = fields.numbers("scores", len(vocabulary.tokens))
    tokens = vocabulary.tokens
    pairs = cached_merges(
        fields.path,
        len(tokens),
        lambda: derive_merges(vocabulary.ranks(scores), vocabulary.ids),
    )
    left, right = ([tokens[index] for index in column] for column in pairs.T.tolist())
    merges = list(zip(left, right, strict=True))
    unknown = fields.token_id("unknown_token_id", len(tokens))
    has_all_bytes = all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256))
    model = fields.bpe(
        vocabulary.ids,
        merges,
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=has_all_bytes,
    )
    tokenizer = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    adds_space_prefix = fields.flag("add_space_prefix", default=True)
    if adds_space_prefix:
        # Before the spaces are respelt, so that a text that begins with one gets a second.
        steps.insert(0, normalizers.Prepend(_SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_tokens(vocabulary.added_tokens())
    special = vocabulary.special_ids(fields)
    has_bos = "tokenizer.ggml.bos_token_id" in fields.metadata
    spec = _spec(
        fields,
        tokenizer,
        special,
        Spelling.SENTENCEPIECE,
        has_bos,
        adds_space_prefix=adds_space_prefix,
        unknown=unknown,
    )
    return ModelTokenizer(tokenizer, spec)


def _spec(
    fields: _Fields,
    tokenizer: tokenizers.Tokenizer,
    special: frozenset[int],
    spelling: Spelling,
    adds_bos_by_default: bool,
    *,
    adds_space_prefix: bool = False,
    unknown: int | None = None,
) -> TokenizerSpec:
    size = tokenizer.get_vocab_size()
    bos = fields.token_id("bos_token_id", size)
    adds_bos = fields.flag("add_bos_token", default=adds_bos_by_default)
    if adds_bos and bos is None:
        raise fields.fail("bos_token_id", "is missing, but the model begins a text with it")
    named = [fields.token_id(key, size) for key in _STOP_KEYS]
    template = fields.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{fields.path}: tokenizer.chat_template: is not a string")
    markers = {fields.metadata["tokenizer.ggml.tokens"][index]: index for index in special}
    return TokenizerSpec(
        where=str(fields.path),
        spelling=spelling,
        special_token_ids=special,
        unknown_token_id=unknown,
        bos_token_id=bos,
        adds_bos=adds_bos,
        adds_space_prefix=adds_space_prefix,
        eos_token_id=named[0],
        eos_token_ids=stop_token_ids([i for i in named if i is not None], markers, template),
        chat_template=template,
    )


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]

    def special_ids(self, fields: _Fields) -> frozenset[int]:
        """Control tokens, and the begin and end tokens whatever type the file gives them."""
        kinds = (_TokenType.CONTROL, _TokenType.UNKNOWN)
        special = {index for index, kind in enumerate(self.types) if kind in kinds}
        for key in ("bos_token_id", *_STOP_KEYS):
            token_id = fields.token_id(key, len(self.tokens))
            if token_id is not None:
                special.add(token_id)
        return frozenset(special)

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are found in a text before anything is merged."""
        kinds = (_TokenType.CONTROL, _TokenType.UNKNOWN, _TokenType.USER_DEFINED)
        return [
            AddedToken(token, normalized=False, special=kind != _TokenType.USER_DEFINED)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in kinds and token
        ]

    def with_spaces_spelt(self, fields: _Fields) -> _Vocabulary:
        """Runs of spaces that the file gives as such are merged in the vocabulary's spelling."""
        tokens = [
            _SPACE * len(token) if token and not token.strip(" ") else token
            for token in self.tokens
        ]
        return _Vocabulary(tokens, self.types, fields.ids_of(tokens))

    def ranks(self, scores: list[float]) -> dict[str, float]:
        """Scores of the pieces that text may merge into.

        Files give user-defined pieces the score -1000, as they are found before merging; the
        vocabulary itself ranks them first.
        """
        mergeable = (_TokenType.NORMAL, _TokenType.USER_DEFINED)
        return {
            token: 0.0 if kind == _TokenType.USER_DEFINED else score
            for token, kind, score in zip(self.tokens, self.types, scores, strict=True)
            if kind in mergeable
        }


class _Fields:
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

    def vocabulary(self) -> _Vocabulary:
        tokens = self.strings("tokens")
        if not tokens:
            raise self.fail("tokens", "is empty")
        types = [int(_TokenType.NORMAL)] * len(tokens)
        if "tokenizer.ggml.token_type" in self.metadata:
            types = self._array("token_type", int, "integers")
        if len(types) != len(tokens):
            raise self.fail("token_type", f"has {len(types)} entries for {len(tokens)} tokens")
        return _Vocabulary(tokens, types, self.ids_of(tokens))

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
