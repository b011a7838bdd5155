"""Requests to one server over connections that are kept."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import msgspec

from takt.bench.endpoint import Endpoint
from takt.bench.http_connection import (
    ConnectionLostError,
    HttpConnection,
    ResponseParseError,
    ResponseSink,
)
from takt.errors import TaktError

MAX_JSON_BYTES = 64 << 20


class ServerError(TaktError):
    """A server that cannot be reached or says no, outside the measured requests."""


class HttpClient:
    """Connections to one server; used by one event loop. Never retries."""

    def __init__(self, endpoint: Endpoint, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._tls = ssl.create_default_context() if endpoint.is_tls else None
        self._idle: list[HttpConnection] = []
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = (
            f"Host: {endpoint.authority}\r\nAccept: */*\r\n"
            f"User-Agent: takt-bench\r\n{authorization}"
        )

    def encode(self, method: str, path: str, body: Any = None) -> bytes:
        """The bytes of a request; `body` becomes JSON."""
        content = b"" if body is None else msgspec.json.encode(body)
        head = f"{method} {self._endpoint.root}{path} HTTP/1.1\r\n{self._headers}"
        if content:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return f"{head}\r\n".encode("latin-1") + content

    async def send(self, payload: bytes, sink: ResponseSink) -> None:
        """One request; raises `OSError` if there is no connection, and what a connection raises."""
        connection = await self._connection()
        await connection.request(payload, sink)
        if connection.is_open:
            self._idle.append(connection)

    async def fetch(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of an answer that is small; raises `ServerError`."""
        sink = _Whole()
        try:
            await self.send(self.encode(method, path, body), sink)
        except (OSError, ConnectionLostError, ResponseParseError) as error:
            raise ServerError(f"{method} {self._endpoint}{path} failed: {error}") from None
        return sink.status, b"".join(sink.parts)

    async def fetch_json(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of a request that must succeed; raises `ServerError`."""
        status, content = await self.fetch(method, path, body)
        if status != 200:
            detail = content[:300].decode(errors="replace")
            raise ServerError(f"{method} {self._endpoint}{path} gave {status}: {detail}")
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise ServerError(f"{method} {self._endpoint}{path} gave no JSON: {error}") from None

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connection(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            HttpConnection, self._endpoint.host, self._endpoint.port, ssl=self._tls
        )
        return made


class _Whole:
    """Keeps a small answer."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: list[bytes] = []
        self._num_bytes = 0

    def on_status(self, status: int) -> None:
        self.status = status

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        self._num_bytes += len(data)
        if self._num_bytes <= MAX_JSON_BYTES:
            self.parts.append(data)
