"""The messages of a chat as a template may see them: known roles, content that is one string."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from takt.errors import InvalidRequestError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_PASSED_ON = ("name", "reasoning_content")
"""Optional strings of a message that templates know."""

_UNSUPPORTED = ("tool_calls", "function_call", "audio", "tool_call_id")

_HARMLESS = ("refusal", "annotations")
"""What a client copies back from an answer of ours, always empty there."""


def read_messages(messages: Sequence[Any]) -> list[dict[str, str]]:
    """Checks and flattens a request's messages; raises `InvalidRequestError` naming the place.

    `developer` is `system`. Text parts are joined by a newline. What a template could only drop or
    print as a Python value (null, images, tool history) is refused.
    """
    if not messages:
        raise InvalidRequestError("messages is an empty list", param="messages")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def num_message_chars(messages: Sequence[Any]) -> int:
    """Characters of the messages' texts, of whatever a client sent."""
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [*contents, *(part.get("text") for part in parts if isinstance(part, dict))]
    return sum(len(text) for text in texts if isinstance(text, str))


def _read_message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    role = _read_role(message.get("role"), f"{where}.role")
    content_at = f"{where}.content"
    result = {"role": role}
    for key, value in message.items():
        if key in ("role", "content") or _is_absent(value):
            continue
        if key in _UNSUPPORTED:
            raise InvalidRequestError(
                f"{content_at} cannot stand for the message: {where}.{key} is not supported",
                param=content_at,
                code="unsupported_parameter",
            )
        if key in _HARMLESS:
            raise InvalidRequestError(
                f"{where}.{key} is only accepted when empty", param=f"{where}.{key}"
            )
        if key not in _PASSED_ON:
            raise _unknown_key(key, where)
        if not isinstance(value, str):
            raise InvalidRequestError(f"{where}.{key} must be a string", param=f"{where}.{key}")
        result[key] = value
    result["content"] = _read_content(message.get("content"), content_at)
    return result


def _read_role(role: Any, where: str) -> str:
    if role in ("tool", "function"):
        # The place that holds what we cannot pass on is the content, whatever the role says.
        content_at = where.removesuffix("role") + "content"
        raise InvalidRequestError(
            f"{content_at} is the result of a tool: role {role!r} is not supported",
            param=content_at,
            code="unsupported_parameter",
        )
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequestError(
            f"{where} must be one of {', '.join(_ROLES)}, got "
            f"{'nothing' if role is None else repr(str(role)[:32])}",
            param=where,
        )
    return _ROLES[role]


def _read_content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequestError(f"{where} is null or missing: it must be text", param=where)
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of parts", param=where)
    if not content:
        raise InvalidRequestError(f"{where} is a list of no parts", param=where)
    return "\n".join(_read_part(part, where, i) for i, part in enumerate(content))


def _read_part(part: Any, where: str, index: int) -> str:
    if not isinstance(part, dict):
        raise InvalidRequestError(f"{where}: part {index} must be an object", param=where)
    kind = part.get("type")
    if kind != "text":
        raise InvalidRequestError(
            f"{where}: part {index} has type {str(kind)[:32]!r}; this model reads text only",
            param=where,
            code="unsupported_parameter",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}: part {index} has no text", param=where)
    for key, value in part.items():
        if key not in ("type", "text") and not _is_absent(value):
            raise InvalidRequestError(
                f"{where}: part {index} has an unknown field {str(key)[:32]!r}", param=where
            )
    return text


def _is_absent(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _unknown_key(key: str, where: str) -> InvalidRequestError:
    known = ("role", "content", *_PASSED_ON)
    nearest = difflib.get_close_matches(key[:64], known, n=1, cutoff=0.6)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return InvalidRequestError(
        f"{where}: unknown field {key[:64]!r}.{hint}", param=where, code="unknown_parameter"
    )
