"""A request's body: read within a limit, parsed as one JSON object within a depth."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from takt.errors import InvalidRequestError
from takt.server.errors import HttpError, TooLateError
from takt.server.json_size import MAX_MEMBERS, MAX_VALUES, exceeds_limits

MAX_DEPTH = 64
"""Nesting of a body; the deepest honest one (a tool's schema in a message) needs about twenty."""

_CHARSET = re.compile(r"""charset\s*=\s*["']?([^"';\s]*)""", re.IGNORECASE)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """A body that may be JSON; raises 400 or 413, and `TooLateError` if the client has left."""
    _check_content_type(request.headers.get("content-type"))
    _check_encoding(request.headers.get("content-encoding"))
    return await _read(request, max_bytes)


def parse_json_object(body: bytes) -> dict[str, Any]:
    if not body:
        raise InvalidRequestError("the request has no body: send a JSON object")
    if exceeds_limits(body):
        raise InvalidRequestError(
            f"the body holds more than {MAX_VALUES} values, or more than {MAX_MEMBERS} lists, "
            "objects and members of objects: send several requests"
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the body must be a JSON object")
    _check_depth(value)
    return value


def _check_content_type(content_type: str | None) -> None:
    if content_type is None:
        return
    media_type, _, parameters = content_type.partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidRequestError(
            f"the content type is {media_type[:64]!r}; send the body as application/json"
        )
    charset = _CHARSET.search(parameters)
    if charset is not None and charset.group(1).lower() not in ("utf-8", "utf8", "us-ascii"):
        raise InvalidRequestError(f"the charset is {charset.group(1)[:32]!r}; send JSON as utf-8")


def _check_encoding(content_encoding: str | None) -> None:
    if content_encoding is not None and content_encoding.strip().lower() not in ("", "identity"):
        raise HttpError(
            415,
            f"the content encoding is {content_encoding[:32]!r}; send the body uncompressed",
            code="unsupported_content_encoding",
        )


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > max_bytes):
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise TooLateError from None
    return b"".join(chunks)


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(
        413,
        f"the body is larger than {max_bytes} bytes (--max-request-bytes)",
        code="request_too_large",
    )
