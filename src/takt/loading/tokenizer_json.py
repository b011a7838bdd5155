"""Tokenizers from a tokenizer.json and the files that lie beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from takt.errors import ModelError
from takt.loading.json_file import read_json_object
from takt.loading.model_tokenizer import ModelTokenizer, Spelling, TokenizerSpec, spelling_of
from takt.loading.stop_tokens import stop_token_ids

_MAX_TOKENIZER_BYTES = 128 << 20
"""Gemma's, the largest known, has 33 MB."""

_MAX_TEMPLATE_BYTES = 1 << 20


def json_tokenizer(
    file: Path, config: Mapping[str, Any], chat_template: str | None = None
) -> ModelTokenizer:
    """Reads `file`, a tokenizer.json, with tokenizer_config.json and chat_template.jinja.

    `config` is the model's config.json, with generation_config.json under `generation_config`, for
    the ids that end a text; `chat_template` holds where no template lies beside the file.
    """
    tokenizer = _parse(file)
    beside = file.with_name("tokenizer_config.json")
    settings = read_json_object(beside) if beside.exists() else {}
    added = tokenizer.get_added_tokens_decoder()
    spelling = spelling_of(tokenizer, str(file))
    begin = _begin_id(tokenizer)
    bos = _token_id(tokenizer, settings.get("bos_token"))
    if bos is None:
        bos = begin if begin is not None else _first(_ids_in(config.get("bos_token_id")))
    adds_bos = settings.get("add_bos_token")
    if not isinstance(adds_bos, bool):
        adds_bos = begin is not None
    generation = config.get("generation_config") or {}
    ends = [
        *_ids_in(_token_id(tokenizer, settings.get("eos_token"))),
        *_ids_in(config.get("eos_token_id")),
        *_ids_in(generation.get("eos_token_id")),
    ]
    special = {token_id for token_id, token in added.items() if token.special}
    special.update(token_id for token_id in (bos, *ends) if token_id in added)
    template = _template(file, settings)
    if template is None:
        template = chat_template
    markers = {added[token_id].content: token_id for token_id in special}
    spec = TokenizerSpec(
        where=str(file),
        spelling=spelling,
        special_token_ids=frozenset(special),
        unknown_token_id=_token_id(tokenizer, getattr(tokenizer.model, "unk_token", None)),
        bos_token_id=bos,
        adds_bos=adds_bos and bos is not None,
        adds_space_prefix=spelling is Spelling.SENTENCEPIECE and _adds_space_prefix(tokenizer),
        eos_token_id=_first(ends),
        eos_token_ids=stop_token_ids(ends, markers, template),
        chat_template=template,
    )
    return ModelTokenizer(tokenizer, spec)


def _parse(file: Path) -> tokenizers.Tokenizer:
    try:
        size = file.stat().st_size
        if size > _MAX_TOKENIZER_BYTES:
            raise ModelError(f"{file}: is {size} bytes, the limit is {_MAX_TOKENIZER_BYTES}")
        return tokenizers.Tokenizer.from_file(str(file))
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    except ModelError:
        raise
    except Exception as error:  # The library raises bare exceptions for bad files.
        raise ModelError(f"{file}: is not a valid tokenizer.json: {error}") from None


def _begin_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    """The id that the tokenizer's own post-processor puts before a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    return whole[0] if len(whole) > len(plain) and whole[0] != plain[0] else None


def _adds_space_prefix(tokenizer: tokenizers.Tokenizer) -> bool:
    without = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        without.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        without.pre_tokenizer = tokenizer.pre_tokenizer
    tokens = without.encode("a", add_special_tokens=False).tokens
    return bool(tokens) and tokens[0].startswith("\u2581")


def _token_id(tokenizer: tokenizers.Tokenizer, token: Any) -> int | None:
    """`token` as tokenizer_config.json gives it: a text, or an object with a `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    found: int | None = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return found


def _ids_in(value: Any) -> list[int]:
    """Ids of a field that holds one, a list or none."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int and item >= 0]


def _first(values: Iterable[int]) -> int | None:
    return next(iter(values), None)


def _template(file: Path, settings: Mapping[str, Any]) -> str | None:
    beside = file.with_name("chat_template.jinja")
    if beside.exists():
        return _text(beside)
    template = settings.get("chat_template")
    beside = file.with_name("chat_template.json")
    if template is None and beside.exists():
        template = read_json_object(beside).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry for entry in template if isinstance(entry, dict)}
        template = named.get("default", {}).get("template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{file.parent}: chat_template: is {json.dumps(template)[:40]}, no text")
    return template


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TEMPLATE_BYTES + 1)
        if len(data) > _MAX_TEMPLATE_BYTES:
            raise ModelError(f"{path}: is over {_MAX_TEMPLATE_BYTES} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: is not UTF-8") from None
