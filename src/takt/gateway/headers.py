"""Which headers pass, in each direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

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

_SECRET = frozenset({"authorization", "x-api-key", "api-key", "cookie"})


def to_upstream(headers: Iterable[tuple[str, str]], host_connection: str = "") -> CIMultiDict[str]:
    """The client's end-to-end headers; answers come uncompressed, so that one is fit for all."""
    dropped = _NOT_TO_UPSTREAM | _named(host_connection)
    kept = CIMultiDict((name, value) for name, value in headers if name.lower() not in dropped)
    kept["Accept-Encoding"] = "identity"
    return kept


def head_of(status: int, headers: Mapping[str, str]) -> Head:
    """An upstream's status and end-to-end headers."""
    dropped = _NOT_TO_CLIENT | _named(headers.get("Connection", ""))
    return Head(
        status,
        [(str(name), value) for name, value in headers.items() if name.lower() not in dropped],
    )


def without_secrets(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What may be kept of a request's headers."""
    return [(str(name), value) for name, value in headers if name.lower() not in _SECRET]


def _named(connection: str) -> frozenset[str]:
    """Headers that the Connection header makes hop-by-hop."""
    if not connection:
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(","))
