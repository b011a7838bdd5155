"""uvicorn's HTTP protocol with two additions: its flow control is visible, its errors are JSON."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from takt.server.errors import HttpError, error_body

_KEY = "takt.connection"


class Connection:
    """The socket behind a request, for a response that must know how far its client reads."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol

    @property
    def is_write_paused(self) -> bool:
        """True while the client reads more slowly than we write; a send would then wait."""
        return self._protocol.flow.write_paused

    async def drain(self) -> None:
        """Returns when the client has read on, or is gone."""
        await self._protocol.flow.drain()

    def abort(self) -> None:
        """Closes the socket at once; what the client has not read is lost."""
        self._protocol.transport.abort()


class TaktHttpProtocol(HttpToolsProtocol):
    """Used by `uvicorn.Config(http=...)`."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_KEY: {"connection": Connection(self)}}

    def send_400_response(self, msg: str) -> None:
        body = error_body(HttpError(400, msg))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """The request's connection; None under a server that is not ours."""
    extension = scope.get("extensions", {}).get(_KEY)
    return None if extension is None else extension["connection"]
