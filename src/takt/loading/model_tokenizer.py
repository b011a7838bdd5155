"""The tokenizer of a model: text to ids and back, control tokens kept apart from text."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken

from takt.errors import InvalidRequestError, ModelError, UnsupportedModelError
from takt.loading.byte_level import spelt_bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
_MARKER = re.compile(r"<\|[^<>|\s]+\|>")
"""Added tokens of this form are markers even where a tokenizer.json does not flag them special."""
_SHORT_CHARS = 1024
"""A batch lets go of the interpreter while it is encoded, a single text does not: 600 kB of it held
up every other thread for 0.9 s. Short texts take the single call, which costs 30 us less."""


class Spelling(enum.Enum):
    """How the vocabulary writes a token's bytes."""

    BYTE_LEVEL = "byte_level"
    SENTENCEPIECE = "sentencepiece"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """What a model file says about its tokenizer, beside the merges."""

    where: str
    """The file, for messages."""
    spelling: Spelling
    special_token_ids: frozenset[int]
    unknown_token_id: int | None
    """What encoding gives for text the vocabulary cannot spell, where it can give anything."""
    bos_token_id: int | None
    adds_bos: bool
    adds_space_prefix: bool
    eos_token_id: int | None
    eos_token_ids: frozenset[int]
    chat_template: str | None


class ModelTokenizer:
    """Implements `takt.loading.base.Tokenizer` over the `tokenizers` library.

    Two pipelines share one vocabulary: one recognises markers, in the other they are plain text.
    Neither is changed after it is made, so any number of threads may encode at once.
    """

    def __init__(self, marked: tokenizers.Tokenizer, spec: TokenizerSpec) -> None:
        marked.no_truncation()
        marked.no_padding()
        added = marked.get_added_tokens_decoder()
        self._spec = spec
        self._marked = marked
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._markers = {
            token.content: token_id
            for token_id, token in sorted(added.items())
            if token_id in spec.special_token_ids or _MARKER.fullmatch(token.content)
        }
        self._plain = _without_markers(marked, added, self._markers, spec.where)
        self._forbidden = spec.special_token_ids - {spec.unknown_token_id}
        self._bytes: dict[int, bytes] = {}
        num_tokens = marked.get_vocab_size(with_added_tokens=True)
        self.vocab_size: int = max(num_tokens, max(added, default=-1) + 1)
        self.bos_token_id = spec.bos_token_id
        self.adds_bos = spec.adds_bos
        self.eos_token_id = spec.eos_token_id
        self.eos_token_ids = spec.eos_token_ids
        self.special_token_ids = spec.special_token_ids
        self.chat_template = spec.chat_template

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        """Raises `InvalidRequestError` for text that is not valid Unicode (lone surrogates).

        A byte that the vocabulary has no token for is left out, as by the model's own tokenizer:
        SmolLM2's lacks six control characters and the unassigned planes.
        """
        pipeline = self._marked if parse_special else self._plain
        ids: list[int]
        try:
            if len(text) <= _SHORT_CHARS:
                ids = pipeline.encode(text, add_special_tokens=False).ids
            else:
                ids = pipeline.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            raise InvalidRequestError(
                "the text holds a lone surrogate (U+D800 to U+DFFF), which is no character"
            ) from None
        if not parse_special and not self._forbidden.isdisjoint(ids):
            # A vocabulary whose merges can spell a control token: never let text become one.
            found = self.token_text(next(i for i in ids if i in self._forbidden))
            raise InvalidRequestError(
                f"the text spells the control token {found!r}, which this model's tokenizer "
                "cannot write as plain text"
            )
        bos = self.bos_token_id if add_bos and self.adds_bos else None
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """b"" too for an id that no token has: embeddings may be padded past the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = b"" if token_id in self.special_token_ids else self._spelt(token_id)
            self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        text: str | None = self._marked.id_to_token(token_id) if token_id >= 0 else None
        return "" if text is None else text

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The space that begins a text in some vocabularies is taken off after a begin token."""
        ids = token_ids
        head = b""
        begins = self._spec.adds_space_prefix and ids[:1] == [self.bos_token_id]
        if begins:
            head, ids = self._written(ids[0], skip_special_tokens), ids[1:]
        body = b"".join(self._written(token_id, skip_special_tokens) for token_id in ids)
        if begins:
            body = body.removeprefix(b" ")
        return (head + body).decode("utf-8", errors="replace")

    def special_tokens(self) -> Mapping[str, int]:
        return self._markers

    def _written(self, token_id: int, skip_special_tokens: bool) -> bytes:
        if skip_special_tokens or token_id not in self.special_token_ids:
            return self.token_bytes(token_id)
        return self.token_text(token_id).encode("utf-8")

    def _spelt(self, token_id: int) -> bytes:
        text = self.token_text(token_id)
        if self._spec.spelling is Spelling.BYTE_LEVEL:
            return text.encode("utf-8") if token_id in self._added else spelt_bytes(text)
        byte = _BYTE_TOKEN.fullmatch(text)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return text.replace(_SPACE, " ").encode("utf-8")


def _without_markers(
    marked: tokenizers.Tokenizer,
    added: Mapping[int, AddedToken],
    markers: Mapping[str, int],
    where: str,
) -> tokenizers.Tokenizer:
    """The same pipeline and the same vocabulary object, in which markers are plain text.

    Markers are still registered, so that every added token keeps its id.
    """
    plain = tokenizers.Tokenizer(marked.model)
    if marked.normalizer is not None:
        plain.normalizer = marked.normalizer
    if marked.pre_tokenizer is not None:
        plain.pre_tokenizer = marked.pre_tokenizer
    in_order = [token for _, token in sorted(added.items())]
    plain.add_tokens(
        [
            AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.content in markers,
            )
            for token in in_order
        ]
    )
    for token_id, token in added.items():
        if plain.token_to_id(token.content) != token_id:
            raise ModelError(f"{where}: added token {token.content!r}: id {token_id} leaves a gap")
    plain.encode_special_tokens = True
    return plain


def spelling_of(tokenizer: tokenizers.Tokenizer, where: str) -> Spelling:
    """Reads off the decoder how a tokenizer.json spells bytes."""
    state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else {}
    kinds = {state.get("type"), *(step.get("type") for step in state.get("decoders", ()))}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return Spelling.SENTENCEPIECE
    raise UnsupportedModelError(
        f"{where}: decoder: {state.get('type')!r} is not supported; supported are byte-level and "
        "SentencePiece vocabularies"
    )
