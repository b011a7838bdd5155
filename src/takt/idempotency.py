"""Keys that make a request the same request again: their form, their owner, their content.

Whoever keeps answers by such a key, a gateway or a server, files them under these.
"""

from __future__ import annotations

import hashlib
import hmac
import math

import msgspec

from takt.errors import InvalidRequestError

KEY_HEADER = "Idempotency-Key"

REPLAYED_HEADER = "Idempotency-Replayed"
"""On an answer that another request with the same key was given first."""

MAX_KEY_LENGTH = 255

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
    """The `digest` of a request's content; equal for bodies that mean the same JSON.

    Order of members, white space, escapes and the spelling of numbers do not count; the order of
    lists does. What is not JSON counts byte for byte. With a `secret` the hash is keyed, so that
    a stolen store tells nothing about short prompts.
    """
    try:
        content = b"json\0" + _encoder.encode(_decoder.decode(body))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        content = b"bytes\0" + body
    return digest(query.encode() + b"\0" + content, secret)


def digest(content: bytes, secret: bytes | None = None) -> str:
    """SHA-256 in hex; HMAC-SHA-256 with a `secret`.

    Stores hold records under it, and upstreams get keys made of it: with any other, a version that
    runs after or beside this one would execute known keys again.
    """
    if secret is not None:
        return hmac.digest(secret, content, "sha256").hex()
    return hashlib.sha256(content).hexdigest()


def read_key(value: str) -> str:
    """The key in an `Idempotency-Key` header; `InvalidRequestError` if it is not fit for one.

    The IETF draft writes the key as a quoted string; most clients send it bare.
    """
    key = value.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    return checked_key(key, KEY_HEADER)


def checked_key(key: str, name: str) -> str:
    """`name` is what the error calls the key by."""
    if len(key) > MAX_KEY_LENGTH:
        raise InvalidRequestError(
            f"{name} is {len(key)} characters long; the limit is {MAX_KEY_LENGTH}",
            param=name,
            code="idempotency_key_too_long",
        )
    if not (key.isascii() and key.isprintable() and key and key == key.strip()):
        raise InvalidRequestError(
            f"{name} must be 1 to {MAX_KEY_LENGTH} printable ASCII characters",
            param=name,
            code="idempotency_key_invalid",
        )
    return key


def credential_digest(credential: str) -> str:
    """Tells credentials apart and cannot be turned back into one; 32 hex digits."""
    # Bytes of a header that are no text come as lone surrogates.
    content = b"tenant\0" + credential.encode(errors="surrogateescape")
    return digest(content)[:32]
