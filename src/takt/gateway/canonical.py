"""One hash for all spellings of a JSON body."""

from __future__ import annotations

import hashlib
import hmac
import math

import msgspec

_EXACT_INTEGERS = 2**53
"""Below this a double holds every integer, so that 1.0 and 1 are the same number."""


def _number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    if value.is_integer() and abs(value) < _EXACT_INTEGERS:
        return int(value)
    return value


_decoder = msgspec.json.Decoder(float_hook=_number)
_encoder = msgspec.json.Encoder(order="sorted")


def fingerprint(body: bytes, query: str = "", *, secret: bytes | None = None) -> str:
    """Hex SHA-256 of a request's content; equal for bodies that mean the same JSON.

    Order of members, white space, escapes and the spelling of numbers do not count; the order of
    lists does. What is not JSON counts byte for byte. With a `secret` the hash is keyed, so that
    a stolen store tells nothing about short prompts.
    """
    try:
        content = b"json\0" + _encoder.encode(_decoder.decode(body))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        content = b"bytes\0" + body
    content = query.encode() + b"\0" + content
    if secret is not None:
        return hmac.new(secret, content, hashlib.sha256).hexdigest()
    return hashlib.sha256(content).hexdigest()
