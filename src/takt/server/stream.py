"""Server-sent events: one per token, one socket write each, and a bound on slow readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from starlette.types import Receive, Scope, Send

from takt.server.connection import Connection, connection_of
from takt.server.errors import TooLateError, error_body, to_http_error
from takt.server.generation import Generation, TokenEvent
from takt.server.recording import mark_failed
from takt.server.stamps import RequestStamps

logger = logging.getLogger("takt.server")

FINAL_FLUSH_SECONDS = 30.0
"""Time that a slow reader has for what is left when its stream has ended."""

_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class StreamFormat(Protocol):
    """How the events of one response are written."""

    content_type: bytes

    def event(self, event: TokenEvent) -> bytes: ...

    def end(self) -> bytes:
        """What follows the last token."""
        ...

    def error(self, body: bytes) -> bytes:
        """An error after the first byte, and the end of the stream."""
        ...


class SlowReaderError(Exception):
    """The client lags behind by more than the stream may buffer."""


class EventStream:
    """An ASGI response that streams a generation. Errors before the first byte are raised."""

    def __init__(
        self,
        generation: Generation,
        format: StreamFormat,
        stamps: RequestStamps,
        *,
        max_lag_tokens: int,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self._generation = generation
        self._format = format
        self._stamps = stamps
        self._max_lag_tokens = max_lag_tokens
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        if connection is not None and scope["http_version"] == "1.0":
            send = connection.without_chunks(send)
        async with abort_on_disconnect(receive, self._generation):
            writer = _Writer(
                send, connection, self._max_lag_tokens, self._stamps.written, self._stamps.now_ns
            )
            try:
                await self._run(writer, scope)
            except TooLateError:
                self._stamps.abandoned()
                if not writer.is_started:
                    raise
            except SlowReaderError:
                logger.warning("a stream was aborted: its client does not read")
                self._stamps.cut_off(*writer.oldest_kept())
                await writer.abort()
            finally:
                writer.close()

    async def _run(self, writer: _Writer, scope: Scope) -> None:
        event_bytes, read, write = self._format.event, self._generation.read, writer.write
        try:
            async with aclosing(self._generation.outputs()) as outputs:
                async for output in outputs:
                    for event in read(output):
                        if not writer.is_started:
                            await self._start(writer)
                        write(event_bytes(event), event)
                    if writer.is_behind:
                        await writer.send_kept()
            self._generation.check_complete()
        except (TooLateError, SlowReaderError):
            raise
        except Exception as error:
            if not writer.is_started:
                raise
            http_error = to_http_error(error)
            if http_error.status == 500:
                logger.exception("a stream failed")
            self._stamps.failed()
            mark_failed(scope)
            await writer.finish(self._format.error(error_body(http_error)))
        else:
            await writer.finish(self._format.end())
            self._stamps.finished()

    async def _start(self, writer: _Writer) -> None:
        content_type = (b"content-type", self._format.content_type)
        await writer.start([content_type, *_HEADERS, *self._headers])


class _Writer:
    """Writes events as they come. While the client does not read, it keeps them, up to a limit.

    Events that are kept leave in one write as soon as the socket takes more. An event goes straight
    to the connection: the layers of the application have nothing to add to a body, and passing
    through them cost more than all else that a token needs.
    """

    def __init__(
        self,
        send: Send,
        connection: Connection | None,
        max_lag: int,
        on_written: Callable[[TokenEvent, int], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._send = send
        self._connection = connection
        self._max_lag = max_lag
        self._on_written = on_written
        self._now_ns = now_ns
        self._kept: list[tuple[bytes, TokenEvent, int]] = []
        """Events that wait for the socket, each with the time since when."""
        self._flusher: asyncio.Task[None] | None = None
        self.is_started = False

    async def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.is_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    def write(self, payload: bytes, event: TokenEvent) -> None:
        connection = self._connection
        # Once the flusher runs, all goes through it: the order holds.
        if connection is not None and self._flusher is None and connection.write_body(payload):
            self._on_written(event, 0)
            return
        if len(self._kept) >= self._max_lag:
            raise SlowReaderError
        self._kept.append((payload, event, self._now_ns()))
        if connection is not None and self._flusher is None:
            self._flusher = asyncio.create_task(self._flush(connection))

    @property
    def is_behind(self) -> bool:
        """Whether there are events to be sent by the one who writes: under a server not ours."""
        return self._connection is None and bool(self._kept)

    async def send_kept(self) -> None:
        kept, self._kept = self._kept, []
        payload = b"".join([item[0] for item in kept])
        await self._send({"type": "http.response.body", "body": payload, "more_body": True})
        now_ns = self._now_ns()
        for _, event, since_ns in kept:
            self._on_written(event, now_ns - since_ns)

    def oldest_kept(self) -> tuple[TokenEvent, int]:
        """The event that has waited longest for the socket, and for how long."""
        _, event, since_ns = self._kept[0]
        return event, self._now_ns() - since_ns

    async def finish(self, payload: bytes) -> None:
        if self._flusher is not None:
            try:
                async with asyncio.timeout(FINAL_FLUSH_SECONDS):
                    await asyncio.shield(self._flusher)
            except TimeoutError:
                raise SlowReaderError from None
        await self._send({"type": "http.response.body", "body": payload, "more_body": False})

    async def abort(self) -> None:
        """Cuts the connection and lets the server notice before the response returns."""
        if self._connection is not None:
            self._connection.abort()
            await self._connection.drain()

    def close(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()

    async def _flush(self, connection: Connection) -> None:
        while self._kept:
            await connection.drain()
            await self.send_kept()
        self._flusher = None


@asynccontextmanager
async def abort_on_disconnect(receive: Receive, generation: Generation) -> AsyncIterator[None]:
    """Ends the generation when the client leaves while the body of the `with` runs."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.abort()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
