"""Requests with an `Idempotency-Key` are executed once; who asks again is given the same bytes.

The execution has no client of its own: one that leaves ends nothing, since it, or a gateway for it,
may ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from takt.errors import TaktError
from takt.idempotency import (
    KEY_HEADER,
    REPLAYED_HEADER,
    credential_digest,
    fingerprint,
    read_key,
)
from takt.server.body import read_body
from takt.server.connection import Connection, connection_of
from takt.server.errors import TooLateError, error_response, to_http_error
from takt.server.idempotency_table import Key
from takt.server.json_size import exceeds_limits
from takt.server.recording import Reader, Recording, mark
from takt.server.state import ServerState

logger = logging.getLogger("takt.server")

PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/generate"})

INLINE_BODY_BYTES = 32 * 1024

WRITE_SECONDS = 30.0
"""A client that takes nothing for this long is taken for gone."""

_REPLAYED = (REPLAYED_HEADER.lower().encode(), b"true")


class Idempotency:
    """Innermost of the middleware, behind the check of credentials."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _key_header(scope)
        if given is None:
            await self._app(scope, receive, send)
            return
        try:
            key = (_credential(scope), scope["path"], read_key(given))
            body = await read_body(Request(scope, receive), self._state.options.max_request_bytes)
            recording, outcome = await self._find(key, body, scope)
        except TooLateError:
            return
        except TaktError as error:
            http_error = to_http_error(error)
            if http_error.status == 422:
                self._state.metrics.observe_idempotent("mismatch")
            await error_response(http_error)(scope, receive, send)
            return
        self._state.metrics.observe_idempotent(outcome)
        await _give(recording, scope, receive, send, is_replay=outcome != "executed")

    async def _find(self, key: Key, body: bytes, scope: Scope) -> tuple[Recording, str]:
        content = await self._fingerprint(body)
        # From here on without a wait: two equal requests never both find nothing.
        table = self._state.idempotency
        found = table.find(key, content)
        if found is not None:
            return found, "replayed" if found.is_over else "joined"
        recording = table.begin(key, content)
        task = asyncio.create_task(self._execute(key, recording, dict(scope), body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return recording, "executed"

    async def _fingerprint(self, body: bytes) -> str:
        if exceeds_limits(body):
            # It will be refused: as plain bytes it need not be parsed for that.
            return fingerprint(b"\0" + body)
        if len(body) <= INLINE_BODY_BYTES:
            return fingerprint(body)
        return await self._state.in_text_pool(lambda: fingerprint(body), len(body))

    async def _execute(self, key: Key, recording: Recording, scope: Scope, body: bytes) -> None:
        mark(scope, recording)
        try:
            await self._app(scope, _receive_of(body), recording.send)
        except Exception as error:
            logger.exception("a request with a key failed")
            if recording.start is None:
                response = error_response(to_http_error(error))
                await response(scope, _receive_of(b""), recording.send)
        finally:
            self._state.idempotency.end(key)


def _receive_of(body: bytes) -> Receive:
    """The body, and then a client that never leaves."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


async def _give(
    recording: Recording, scope: Scope, receive: Receive, send: Send, *, is_replay: bool
) -> None:
    """Writes a recording to one client, at its pace and as long as it is there.

    One that was cut short ends with the connection, which tells the client that it was.
    """
    connection = connection_of(scope)
    async with _reading(recording, receive) as reader:
        while recording.start is None and not (recording.is_over or reader.is_gone):
            await reader.news.wait()
            reader.news.clear()
        if recording.start is None or reader.is_gone:
            return
        start = dict(recording.start)
        if is_replay:
            start["headers"] = [*start.get("headers", []), _REPLAYED]
        if connection is not None and scope["http_version"] == "1.0" and not _has_length(start):
            send = connection.without_chunks(send)
        try:
            await _write(send, start)
            await _write_body(recording, reader, send)
            if not (recording.is_whole or reader.is_gone):
                await _cut(connection)
        except TimeoutError:
            logger.warning("an answer was cut off: its client does not read")
            await _cut(connection)


async def _write_body(recording: Recording, reader: Reader, send: Send) -> None:
    position = 0
    while not reader.is_gone:
        pieces = recording.pieces[position:]
        position += len(pieces)
        is_last = recording.is_whole and position == len(recording.pieces)
        if pieces or is_last:
            body = b"".join(pieces)
            await _write(
                send, {"type": "http.response.body", "body": body, "more_body": not is_last}
            )
        if is_last or (recording.is_over and position == len(recording.pieces)):
            return
        if position == len(recording.pieces) and not recording.is_whole:
            await reader.news.wait()
        reader.news.clear()


async def _write(send: Send, message: Message) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await send(message)


async def _cut(connection: Connection | None) -> None:
    if connection is not None:
        connection.abort()
        await connection.drain()


@asynccontextmanager
async def _reading(recording: Recording, receive: Receive) -> AsyncIterator[Reader]:
    """A reader that is told when its client leaves."""
    reader = Reader()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        reader.is_gone = True
        reader.news.set()

    recording.readers.add(reader)
    watcher = asyncio.create_task(watch())
    try:
        yield reader
    finally:
        watcher.cancel()
        recording.readers.discard(reader)


def _key_header(scope: Scope) -> str | None:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
        return None
    return _header(scope, KEY_HEADER.lower().encode())


def _credential(scope: Scope) -> str:
    given = _header(scope, b"authorization") or _header(scope, b"x-api-key") or ""
    return credential_digest(given)


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def _has_length(start: Message) -> bool:
    return any(name == b"content-length" for name, _ in start.get("headers", []))
