"""One HTTP/1.1 connection of the load generator: a stamp per socket read, and little else.

A general client costs tens of microseconds per chunk; here server and client share the cores, and
what the client takes is missing from what it measures.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

import httptools


class ResponseSink(Protocol):
    """Takes a response as it comes."""

    def on_status(self, status: int) -> None: ...

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        """`stamp_ns` is when the socket read that brought `data` returned."""
        ...


class ConnectionLostError(Exception):
    """The connection ended inside a response, or before it."""


class ResponseParseError(Exception):
    """What came is not HTTP."""


class HttpConnection(asyncio.Protocol):
    """Requests one after the other; `is_open` tells whether another may follow."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: ResponseSink | None = None
        self._done: asyncio.Future[None] | None = None
        self._stamp_ns = 0
        self._ends_with_connection = False
        self._has_length = False
        self.is_open = False

    async def request(self, payload: bytes, sink: ResponseSink) -> None:
        """Sends the bytes of a request; returns when the response has ended.

        Raises `ConnectionLostError` and `ResponseParseError`; after either, or if it is cancelled,
        the connection is closed.
        """
        if self._transport is None or not self.is_open:
            raise ConnectionLostError("the connection was closed")
        self._sink = sink
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        try:
            await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._sink = None
            self._done = None

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._stamp_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ResponseParseError(str(error)))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if error is None and self._ends_with_connection:
            self.on_message_complete()
        else:
            self._fail(ConnectionLostError(str(error) if error else "closed by the server"))

    # httptools

    def on_message_begin(self) -> None:
        self._has_length = False
        self._ends_with_connection = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._ends_with_connection = not self._has_length
        if self._sink is not None:
            self._sink.on_status(self._parser.get_status_code())

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.on_body(data, self._stamp_ns)

    def on_message_complete(self) -> None:
        self._ends_with_connection = False
        if not self._parser.should_keep_alive():
            self.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
