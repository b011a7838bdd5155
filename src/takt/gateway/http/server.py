"""Listens for clients, and keeps the times of all their connections."""

from __future__ import annotations

import asyncio
import email.utils
import socket
import ssl

from takt.gateway.http.application import Application
from takt.gateway.http.connection import ClientConnection
from takt.gateway.http.limits import MAX_CONNECTIONS, READ_SECONDS

KEEP_ALIVE_SECONDS = 75.0
BACKLOG = 1024
HANDSHAKE_SECONDS = 15.0

CHECK_SECONDS = 0.5
"""Between two looks at connections: limits of time are exact to that."""

_POLL_SECONDS = 0.02


class HttpServer:
    """Owned by the event loop that starts it."""

    def __init__(
        self,
        application: Application,
        *,
        max_connections: int = MAX_CONNECTIONS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self.application = application
        self.connections: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()
        self.max_connections = max_connections
        self.keep_alive_seconds = KEEP_ALIVE_SECONDS
        self.read_seconds = read_seconds
        self.date_line = _date_line()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self, self._loop),
            sock=bound,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
        )
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    @property
    def is_sending(self) -> bool:
        """Some client has not read all of an answer."""
        return any(connection.is_writing_paused for connection in self.connections)

    async def close(self, seconds: float) -> None:
        """Takes no new connections; those with an answer under way have `seconds` to end it."""
        if self._server is not None:
            self._server.close()
        until = self._loop.time() + seconds
        while self.connections and self._loop.time() < until:
            for connection in list(self.connections):
                if connection.is_idle and not connection.is_closing:
                    connection.close()
            await asyncio.sleep(_POLL_SECONDS)
        for connection in (*self.connections, *self.turned_away):
            connection.abort()
        # The transports tell their protocols a turn of the loop later.
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self.date_line = _date_line()
        now = self._loop.time()
        for connection in (*self.connections, *self.turned_away):
            connection.check(now)
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)


def _date_line() -> str:
    return f"Date: {email.utils.formatdate(usegmt=True)}\r\n"
