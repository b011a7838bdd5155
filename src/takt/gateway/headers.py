"""Which headers pass, in each direction."""

from __future__ import annotations

from collections.abc import Iterable

from takt.errors import InvalidRequestError
from takt.gateway.http.decoding import encoding_to_undo
from takt.gateway.http.fields import Headers
from takt.gateway.states import Head
from takt.idempotency import KEY_HEADER

DEADLINE_HEADER = "X-Request-Timeout-Ms"
"""Milliseconds the caller will wait."""

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
    "date",
    "server",
    # One client's cookie must not be replayed to another.
    "set-cookie",
}

_SECRET_WORDS = ("auth", "key", "token", "cookie", "secret", "password", "credential", "signature")


def to_upstream(headers: Headers) -> list[tuple[str, str]]:
    """The client's end-to-end headers; answers come uncompressed, so that one is fit for all.

    Raises `InvalidRequestError` for bytes that are no text.
    """
    dropped = _dropped(_NOT_TO_UPSTREAM, headers)
    kept = [pair for pair in headers.pairs if pair[0].lower() not in dropped]
    for name, value in kept:
        if not value.isascii():
            _check_text(name, value)
    kept.append(("Accept-Encoding", "identity"))
    return kept


def head_of(status: int, headers: Headers) -> Head:
    """An upstream's status and end-to-end headers."""
    dropped = _dropped(_NOT_TO_CLIENT, headers)
    return Head(
        status,
        [
            (name, value if value.isascii() else _as_text(value))
            for name, value in headers.pairs
            if name.lower() not in dropped
        ],
    )


def without_secrets(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What may be kept of a request's headers: those that may hold a secret are not."""
    return [
        (name, value)
        for name, value in headers
        if not any(word in name.lower() for word in _SECRET_WORDS)
    ]


def _check_text(name: str, value: str) -> None:
    """Other bytes than UTF-8 stand as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"the header {name} is neither ASCII nor UTF-8", param=name
        ) from None


def _as_text(value: str) -> str:
    return value.encode(errors="replace").decode()


def _dropped(always: frozenset[str], headers: Headers) -> frozenset[str]:
    """Names of headers that go no further: also those that Connection makes hop-by-hop, and the
    encoding of a body that is decoded here."""
    if "connection" in headers:
        named = headers.joined("connection")
        always |= {name.strip().lower() for name in named.split(",")}
    if "content-encoding" in headers and encoding_to_undo(headers) is not None:
        always |= {"content-encoding"}
    return always
