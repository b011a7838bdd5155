"""uvicorn's HTTP protocol, made fit for any client: limits, visible flow control, JSON errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

import httptools
from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from takt.server.errors import HttpError, error_body

access_logger = logging.getLogger("takt.access")

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers together."""

HEAD_SECONDS = 30.0
"""Time for a request's line and headers, once the first byte has come or a connection is new."""

BODY_SECONDS = 300.0
"""Time for a request's body."""

_KEY = "takt.connection"

_STATUS_LINES = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    405: b"HTTP/1.1 405 Method Not Allowed\r\n",
    408: b"HTTP/1.1 408 Request Timeout\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
}


class Connection:
    """The socket behind a request, for a response that must know how far its client reads."""

    def __init__(self, protocol: HttpToolsProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._flow = protocol.flow
        self._write = protocol.transport.write

    def write_body(self, payload: bytes) -> bool:
        """A part of a body that goes on, as `send` would write it; False if that would wait.

        The response must have begun. For a client that is gone it goes nowhere.
        """
        if self._flow.write_paused:
            return False
        cycle = self._cycle
        if not cycle.disconnected:
            if cycle.chunked_encoding:
                payload = b"%x\r\n%b\r\n" % (len(payload), payload)
            self._write(payload)
        return True

    async def drain(self) -> None:
        """Returns when the client has read on, or is gone."""
        await self._protocol.flow.drain()

    def abort(self) -> None:
        """Closes the socket at once; what the client has not read is lost."""
        self._protocol.transport.abort()

    def without_chunks(self, send: Send) -> Send:
        """A `send` for HTTP/1.0, which knows no chunks: the body ends with the connection."""
        cycle = self._cycle

        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.start":
                cycle.chunked_encoding = False
            else:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        return send_plain


class TaktHttpProtocol(HttpToolsProtocol):
    """Used by `uvicorn.Config(http=...)`.

    Beyond uvicorn's: a request that does not arrive in time ends with 408, one whose headers grow
    without end with 431; a client that goes ends every request that it had pipelined; an offer to
    upgrade the protocol is passed over, with the request's body intact; HTTP/1.0 gets no chunks.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # What the kernel does not take is known at once, and a write is one system call: a token
        # is stamped when it has left, and a client that does not read is seen as such.
        transport.set_write_buffer_limits(high=1, low=0)  # high=0 never lets a TLS transport write
        self._cycles: list[RequestResponseCycle] = []
        """Requests whose responses are not complete; all but the first wait for their turn."""
        self._is_in_head = False
        self._is_in_message = False
        self._num_head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._expect_within(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)
        self._end_cycles()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_in_head:  # what the read that begins a request brings is not counted
            self._num_head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pass_over_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(HttpError(400, "this is not valid HTTP/1.1"))
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(HttpError(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes"))
        elif not self._is_in_message and not self._open_cycles:
            # Line ends between requests are no request: the connection is as idle as before.
            self._expect_within(self.timeout_keep_alive)

    @property
    def _open_cycles(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    # -- what the parser finds ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = self._is_in_message = True
        self._num_head_bytes = 0
        self._expect_within(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._num_head_bytes = 0
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        connection = Connection(self, self.cycle)
        self.scope["extensions"] = {_KEY: {"connection": connection}}
        self._cycles = [*self._open_cycles, self.cycle]
        self._expect_within(BODY_SECONDS)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._is_in_message = False
        self._expect_nothing()
        super().on_message_complete()

    def _pass_over_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its offer: llhttp takes it for accepted.

        Some clients (Java's among them) offer HTTP/2 with every request; RFC 9110, section 7.8,
        lets a server ignore that.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(HttpError(405, "CONNECT is not allowed here"))
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    # -- time ---------------------------------------------------------------------------------

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, self._on_late)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if len(self._open_cycles) > (not self._is_in_head):
            # A pipelined request is not read while another is answered: its time begins later.
            self._expect_within(HEAD_SECONDS)
        elif self._is_in_message:
            self._refuse(HttpError(408, "the request did not arrive in time"))
        else:
            self.transport.close()

    # -- errors below the application ---------------------------------------------------------

    def _refuse(self, error: HttpError) -> None:
        """Answers what can be no request, unless a response is under way, and closes."""
        if self.transport.is_closing():
            return
        if not any(cycle.response_started for cycle in self._cycles):
            body = error_body(error)
            self.transport.write(
                b"%scontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n"
                b"\r\n%s" % (_STATUS_LINES[error.status], len(body), body)
            )
        self._end_cycles()
        self._is_in_head = self._is_in_message = False
        access_logger.info(
            "%s refused with %d: %s", self.client[0] if self.client else "-", error.status, error
        )
        self.transport.close()

    def _end_cycles(self) -> None:
        for cycle in self._open_cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        self._cycles = []


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """The request's connection; None under a server that is not ours."""
    extension = scope.get("extensions", {}).get(_KEY)
    return None if extension is None else extension["connection"]
