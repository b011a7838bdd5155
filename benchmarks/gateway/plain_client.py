"""Clients that cost next to nothing, so that what they measure is not their own time."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from typing import cast

_EVENT = re.compile(rb"data: (\d+)\n")


def request_bytes(port: int, path: str, key: str, body: bytes) -> bytes:
    """With the fields that an OpenAI client sends."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        "Accept-Encoding: gzip, deflate\r\nUser-Agent: OpenAI/Python\r\n"
        "Authorization: Bearer sk-benchmark\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class PlainClient:
    """One blocking connection that is kept: whoever waits for it is woken by the kernel itself."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, key: str, body: bytes) -> float:
        """Milliseconds from the first byte sent to the last one of an answer of status 200."""
        request = request_bytes(self._port, self._path, key, body)
        begin = time.perf_counter_ns()
        self._socket.sendall(request)
        head, _, rest = self._read_until_blank_line().partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        assert head.startswith(b"HTTP/1.1 200 ") and length is not None, head
        num_missing = int(length.group(1)) - len(rest)
        while num_missing > 0:
            num_missing -= len(self._receive())
        return (time.perf_counter_ns() - begin) / 1e6

    def close(self) -> None:
        self._socket.close()

    def _read_until_blank_line(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        return data

    def _receive(self) -> bytes:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionError("the connection was closed")
        return data


class EventStream(asyncio.Protocol):
    """Asks for a stream whose events hold the time when they were written."""

    def __init__(self, request: bytes, delays_ms: list[float]) -> None:
        """Adds the delay of each event to `delays_ms`."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The end mark has come, or the connection has ended."""
        self._request = request
        self._delays_ms = delays_ms
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        data = self._rest + data
        end = 0
        for found in _EVENT.finditer(data):
            self._delays_ms.append((now_ns - int(found.group(1))) / 1e6)
            end = found.end()
        self._rest = data[end:]
        if b"data: [DONE]" in self._rest:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)
