"""Which headers pass, in each direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from takt.errors import InvalidRequestError
from takt.gateway.states import Head
from takt.idempotency import KEY_HEADER

DEADLINE_HEADER = "X-Request-Timeout-Ms"
"""Milliseconds the caller will wait; passed on with what is left of it."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

_NOT_TO_UPSTREAM = _HOP_BY_HOP | {
    "host",
    "content-length",
    "accept-encoding",
    "expect",
    KEY_HEADER.lower(),
    DEADLINE_HEADER.lower(),
    "traceparent",
    "tracestate",
}

_NOT_TO_CLIENT = _HOP_BY_HOP | {
    "content-length",
    "content-encoding",
    "date",
    "server",
    # One client's cookie must not be replayed to another.
    "set-cookie",
}

_SECRET_WORDS = ("auth", "key", "token", "cookie", "secret", "password", "credential", "signature")


_DECODED = frozenset({"gzip", "deflate", "br", "zstd"})
"""Encodings of a request's body that aiohttp undoes as it reads."""


def to_upstream(headers: Iterable[tuple[str, str]], host_connection: str = "") -> CIMultiDict[str]:
    """The client's end-to-end headers; answers come uncompressed, so that one is fit for all.

    Raises `InvalidRequestError` for bytes that are no text.
    """
    dropped = _NOT_TO_UPSTREAM | _named(host_connection)
    kept = CIMultiDict((name, value) for name, value in headers if name.lower() not in dropped)
    for name, value in kept.items():
        if not value.isascii():
            _check_text(name, value)
    kept["Accept-Encoding"] = "identity"
    if kept.get("Content-Encoding", "").lower() in _DECODED:
        del kept["Content-Encoding"]
    return kept


def head_of(status: int, headers: Mapping[str, str]) -> Head:
    """An upstream's status and end-to-end headers."""
    dropped = _NOT_TO_CLIENT | _named(headers.get("Connection", ""))
    return Head(
        status,
        [
            (str(name), value if value.isascii() else _as_text(value))
            for name, value in headers.items()
            if name.lower() not in dropped
        ],
    )


def without_secrets(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What may be kept of a request's headers: those that may hold a secret are not."""
    return [
        (str(name), value)
        for name, value in headers
        if not any(word in name.lower() for word in _SECRET_WORDS)
    ]


def _check_text(name: str, value: str) -> None:
    """aiohttp reads headers as UTF-8 and keeps other bytes as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"the header {name} is neither ASCII nor UTF-8", param=str(name)
        ) from None


def _as_text(value: str) -> str:
    return value.encode(errors="replace").decode()


def _named(connection: str) -> frozenset[str]:
    """Headers that the Connection header makes hop-by-hop."""
    if not connection:
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(","))
