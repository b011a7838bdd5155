"""HTTP by hand: bytes as a client or a server would send them, whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from takt.gateway.errors import GatewayError
from takt.gateway.http.exchange import Exchange
from takt.gateway.http.server import HttpServer

Handle = Callable[[Exchange], Awaitable[None]]

END = b"Connection: close\r\n\r\n"


def post(body: bytes, *fields: bytes, path: bytes = b"/") -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: h", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def bodies(answered: bytes) -> list[bytes]:
    """Of answers with a length, one behind the other."""
    found = []
    while answered:
        head, _, answered = answered.partition(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head).group(1))  # type: ignore[union-attr]
        found.append(answered[:length])
        answered = answered[length:]
    return found


async def echo(exchange: Exchange) -> None:
    exchange.send(200, [("X-Method", exchange.method)], exchange.body)


@dataclass
class EchoApplication:
    """Answers with what it was sent, or as `answer` does; `refusal` is given to every head."""

    max_body_bytes: int = 1_000_000
    answer: Handle = echo
    refusal: GatewayError | None = None
    seen: list[Exchange] = field(default_factory=list)
    num_in_flight: int = 0
    refused_with: list[str] = field(default_factory=list)

    def admit(self, exchange: Exchange) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.num_in_flight += 1

    async def handle(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        try:
            await self.answer(exchange)
        finally:
            self.num_in_flight -= 1

    def dismiss(self, exchange: Exchange) -> None:
        self.num_in_flight -= 1

    def refused(self, error: GatewayError) -> None:
        self.refused_with.append(error.code)


class Served:
    """An application on a port of its own."""

    def __init__(
        self,
        application: EchoApplication,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        **limits: Any,
    ) -> None:
        """`tls` is that of the server and of its clients; `limits` are the server's."""
        self.application = application
        self.server = HttpServer(application, **limits)
        self._server_tls, self._client_tls = tls or (None, None)

    async def __aenter__(self) -> Served:
        bound = socket.create_server(("127.0.0.1", 0))
        self._port = bound.getsockname()[1]
        await self.server.start(bound, self._server_tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close(0.2)
        assert not self.server.connections

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._client_tls)

    async def ask(self, *pieces: bytes) -> bytes:
        """All that is answered until the connection ends; pieces are sent one after the other."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            async with asyncio.timeout(100):
                return await reader.read()
        finally:
            writer.close()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawUpstream:
    """Serves connections as a function says, and closes each when that returns."""

    def __init__(self, serve: Serve) -> None:
        self._serve_one = serve
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> RawUpstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve_one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@dataclass
class Script:
    """What a server answers to each request of a connection, before it closes it."""

    answers: Sequence[bytes]
    stays_open: bool = False


class ScriptedConnections:
    """Each connection follows the next script; requests are `seen` by connection."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.seen: list[list[bytes]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts.pop(0)
        requests: list[bytes] = []
        self.seen.append(requests)
        for answer in script.answers:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
        if script.stays_open:
            await reader.read()
