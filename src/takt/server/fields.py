"""Which fields of a request are read, which are harmless, and which are refused by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from takt.errors import InvalidRequestError

HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields of OpenAI's that cannot change an answer of ours: accepted, whatever they hold."""

_EMPTY: tuple[Any, ...] = ("", [], {})
_OFF: tuple[Any, ...] = (False, *_EMPTY)

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (False,),
    "allowed_token_ids": _EMPTY,
    "audio": _EMPTY,
    "bad_words": _EMPTY,
    "best_of": (1,),
    "chat_template": _EMPTY,
    "documents": _EMPTY,
    "echo": _OFF,
    "function_call": ("none", "auto", *_EMPTY),
    "functions": _EMPTY,
    "guided_choice": _EMPTY,
    "guided_grammar": _EMPTY,
    "guided_json": _EMPTY,
    "guided_regex": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "length_penalty": (1,),
    "logits_processors": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "modalities": (["text"], []),
    "prediction": _EMPTY,
    "reasoning_effort": _EMPTY,
    "request_id": _EMPTY,
    "response_format": ({"type": "text"}, *_EMPTY),
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "spaces_between_special_tokens": (True,),
    "structured_outputs": _EMPTY,
    "suffix": _EMPTY,
    "tool_choice": ("none", "auto", *_EMPTY),
    "tools": _EMPTY,
    "truncate_prompt_tokens": _EMPTY,
    "use_beam_search": _OFF,
    "verbosity": ("medium", *_EMPTY),
    "web_search_options": _EMPTY,
}
"""Fields that would change an answer and are not supported, with the values that ask nothing."""

MAX_REPORTED = 8
"""Unknown fields that are told of; the nearest name of each takes a search."""

_EMPTY_IS_ABSENT = frozenset({"stop", "stop_token_ids", "logit_bias", "stream_options"})

_VALIDATION_ERROR = re.compile(r"(.+) - at (?:`key` in )?`\$\.?(.+)`")
_MISSING_FIELD = re.compile(r"missing required field `(\w+)`$")

RequestT = TypeVar("RequestT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field nobody knows, and the sentence about it."""

    name: str
    message: str


def read_fields(
    body: Mapping[str, Any], request_type: type[RequestT]
) -> tuple[RequestT, list[UnknownField]]:
    """A request from a parsed body, and the first of the fields in it that are unknown.

    Null means absent everywhere. Raises `InvalidRequestError` for a field that is known and not
    supported, and for a wrong type. The caller decides about the unknown ones.
    """
    known = request_type.__struct_fields__
    fields: dict[str, Any] = {}
    unknown: list[UnknownField] = []
    for name, value in body.items():
        if value is None or (name in HARMLESS and name not in known):
            continue
        if name in known:
            if not (name in _EMPTY_IS_ABSENT and _is_one_of(value, _EMPTY)):
                fields[name] = value
        elif name in NEUTRAL:
            if not _is_one_of(value, NEUTRAL[name]):
                raise InvalidRequestError(
                    f"{name} is not supported", param=name, code="unsupported_parameter"
                )
        elif len(unknown) < MAX_REPORTED:
            unknown.append(UnknownField(name, _unknown_message(name, known)))
    return convert_fields(fields, request_type), unknown


def convert_fields(fields: Mapping[str, Any], request_type: type[RequestT]) -> RequestT:
    try:
        return msgspec.convert(fields, request_type, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid_type(error) from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None


def refuse_unknown(unknown: list[UnknownField]) -> None:
    for field in unknown:
        raise InvalidRequestError(field.message, param=field.name, code="unknown_parameter")


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equality that keeps true and 1 apart from each other, and 1.0 equal to 1."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
    )


def _unknown_message(name: str, known: tuple[str, ...]) -> str:
    names = [*known, *HARMLESS, *NEUTRAL]
    nearest = difflib.get_close_matches(name[:64], names, n=1, cutoff=0.6)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return f"Unknown field: {name[:64]!r}.{hint}"


def _invalid_type(error: msgspec.ValidationError) -> InvalidRequestError:
    """msgspec says "Expected `int`, got `str` - at `$.seed`"; we put the field first."""
    parsed = _VALIDATION_ERROR.match(str(error))
    if parsed is None:
        missing = _MISSING_FIELD.search(str(error))
        if missing is None:
            return InvalidRequestError(str(error))
        return InvalidRequestError(f"{missing[1]}: is missing", param=missing[1])
    what, path = parsed.groups()
    return InvalidRequestError(f"{path}: {what[:1].lower()}{what[1:]}", param=path)
