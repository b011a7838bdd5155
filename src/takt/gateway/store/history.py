"""A record's failed attempts, as the stores keep them."""

from __future__ import annotations

import msgspec

from takt.gateway.states import Attempt, Head

MAX_ATTEMPTS_KEPT = 64

_history = msgspec.json.Decoder(list[Attempt])
_head = msgspec.json.Decoder(Head)


def encode_attempt(attempt: Attempt) -> bytes:
    return msgspec.json.encode(attempt)


def decode_history(data: bytes) -> tuple[Attempt, ...]:
    return tuple(_history.decode(data)) if data else ()


def extend_history(data: bytes, attempt: Attempt) -> bytes:
    """The newest `MAX_ATTEMPTS_KEPT` attempts."""
    return msgspec.json.encode([*decode_history(data), attempt][-MAX_ATTEMPTS_KEPT:])


def encode_head(head: Head | None) -> bytes:
    return b"" if head is None else msgspec.json.encode(head)


def decode_head(data: bytes) -> Head | None:
    return _head.decode(data) if data else None
