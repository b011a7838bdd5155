"""Connections to upstreams, kept for the next request for a short while."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urlsplit
from weakref import WeakSet

from takt.gateway.http.upstream_connection import UpstreamConnection

KEEP_ALIVE_SECONDS = 3.0
"""Shorter than servers' own (uvicorn's is 5 s): a request sent into a connection that the server
is closing has an unknown outcome."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PATH_CHARS = "/%:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a URL leads, made once for each. `authority` is what a Host header says, `path` a
    prefix of targets."""

    host: str
    port: int
    authority: str
    path: str
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None) -> Origin:
        """`tls` is used for https only. The URL's query stays behind its path."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host.isascii():
            host = host.encode("idna").decode()
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == _DEFAULT_PORTS[parts.scheme] else f"{shown}:{port}"
        path = quote(parts.path, safe=_PATH_CHARS)
        if parts.query:
            path += "?" + quote(parts.query, safe=_PATH_CHARS + "?")
        return cls(host, port, authority, path, tls if parts.scheme == "https" else None)


class ConnectionPool:
    """Owned by the event loop that makes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._free: dict[Origin, list[UpstreamConnection]] = {}
        """Those used last are at the end: they are taken first, so that the others grow old."""
        self._made: WeakSet[UpstreamConnection] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def take(self, origin: Origin) -> UpstreamConnection | None:
        """A connection that is open and free."""
        free = self._free.get(origin)
        oldest = self._loop.time() - KEEP_ALIVE_SECONDS
        while free:
            connection = free.pop()
            if connection.is_open and connection.free_since > oldest:
                return connection
            connection.close()
        return None

    async def connect(self, origin: Origin, seconds: float) -> UpstreamConnection:
        """A new connection. Raises `OSError`, of which `TimeoutError` is one, and `ssl.SSLError`
        likewise."""
        # Whoever asks need not be a task, but a timeout is one's.
        opening = self._loop.create_task(self._open(origin, seconds))
        try:
            return await opening
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            raise

    async def _open(self, origin: Origin, seconds: float) -> UpstreamConnection:
        def give_back(connection: UpstreamConnection) -> None:
            self._give_back(origin, connection)

        async with asyncio.timeout(seconds):
            _, made = await self._loop.create_connection(
                lambda: UpstreamConnection(self._loop, give_back),
                origin.host,
                origin.port,
                ssl=origin.tls,
                server_hostname=None if origin.tls is None else origin.host,
            )
        self._made.add(made)
        return made

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._made):  # some are free, some only wait for an answer's end
            connection.close()
        self._free.clear()
        # The transports tell their protocols a turn of the loop later.
        await asyncio.sleep(0)

    def _give_back(self, origin: Origin, connection: UpstreamConnection) -> None:
        if self._is_closed:
            connection.close()
            return
        connection.free_since = self._loop.time()
        self._free.setdefault(origin, []).append(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._close_old)

    def _close_old(self) -> None:
        self._timer = None
        oldest = self._loop.time() - KEEP_ALIVE_SECONDS
        for origin, free in list(self._free.items()):
            young = [one for one in free if one.is_open and one.free_since > oldest]
            for connection in free:
                if connection.free_since <= oldest:
                    connection.close()
            if young:
                self._free[origin] = young
            else:
                del self._free[origin]
        if self._free:
            self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._close_old)
