"""Tokenizers from the metadata of GGUF files: byte-level BPE and SentencePiece vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.gguf_vocabulary import SPACE, STOP_KEYS, GGUFVocabulary, TokenizerFields
from takt.loading.merges import cached_merges, derive_merges
from takt.loading.model_tokenizer import ModelTokenizer, Spelling, TokenizerSpec
from takt.loading.pre_tokenizers import pre_tokenizer_named
from takt.loading.stop_tokens import stop_token_ids


def gguf_tokenizer(path: Path, metadata: Mapping[str, Any]) -> ModelTokenizer:
    """Raises `ModelError` for broken metadata, `UnsupportedModelError` for an unknown kind."""
    fields = TokenizerFields(path, metadata)
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(fields)
    if kind == "llama":
        return _sentencepiece(fields)
    what = "is missing" if kind is None else f"{kind!r} is unknown"
    raise UnsupportedModelError(f"{path}: tokenizer.ggml.model: {what}; known are gpt2, llama")


def gguf_stop_ids(path: Path, metadata: Mapping[str, Any]) -> frozenset[int]:
    """`eos_token_ids` of the tokenizer without making it: seconds less for a large vocabulary."""
    fields = TokenizerFields(path, metadata)
    return _spec(fields, fields.vocabulary(), Spelling.BYTE_LEVEL, False).eos_token_ids


def _byte_level(fields: TokenizerFields) -> ModelTokenizer:
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
    spec = _spec(fields, vocabulary, Spelling.BYTE_LEVEL, split.adds_bos)
    tokenizer.add_tokens(vocabulary.added_tokens(spec.special_token_ids))
    return ModelTokenizer(tokenizer, spec)


def _sentencepiece(fields: TokenizerFields) -> ModelTokenizer:
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
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    adds_space_prefix = fields.flag("add_space_prefix", default=True)
    if adds_space_prefix:
        # Before the spaces are respelt, so that a text that begins with one gets a second.
        steps.insert(0, normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    spec = _spec(
        fields,
        vocabulary,
        Spelling.SENTENCEPIECE,
        "tokenizer.ggml.bos_token_id" in fields.metadata,
        adds_space_prefix=adds_space_prefix,
        unknown=unknown,
    )
    tokenizer.add_tokens(vocabulary.added_tokens(spec.special_token_ids))
    return ModelTokenizer(tokenizer, spec)


def _spec(
    fields: TokenizerFields,
    vocabulary: GGUFVocabulary,
    spelling: Spelling,
    adds_bos_by_default: bool,
    *,
    adds_space_prefix: bool = False,
    unknown: int | None = None,
) -> TokenizerSpec:
    size = len(vocabulary.tokens)
    special = vocabulary.special_ids(fields)
    bos = fields.token_id("bos_token_id", size)
    adds_bos = fields.flag("add_bos_token", default=adds_bos_by_default)
    if adds_bos and bos is None:
        raise fields.fail("bos_token_id", "is missing, but the model begins a text with it")
    named = [fields.token_id(key, size) for key in STOP_KEYS]
    template = fields.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{fields.path}: tokenizer.chat_template: is not a string")
    markers = {vocabulary.tokens[index]: index for index in special}
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
