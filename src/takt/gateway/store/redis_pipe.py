"""Scripts over one connection: each is sent as it comes, and answers arrive in the same order.

A pool of connections, each with one command at a time, costs three times the processor time of the
scripts themselves: taking one, a Python encoder, a timeout around each read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from takt.gateway.store.redis_line import RedisLine

Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    source: str
    digest: str
    """By which the server knows a script that it has run before."""

    @classmethod
    def of(cls, source: str) -> Script:
        return cls(source, sha1(source.encode()).hexdigest())


class ScriptPipe:
    """Raises `RedisError` or `OSError`; the connection is then made anew for the next script."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        """Fails for a URL that is none of Redis's, in any of the library's ways."""
        # Time is kept by the line, for each script.
        pool: ConnectionPool = ConnectionPool.from_url(
            url, socket_timeout=None, socket_connect_timeout=timeout_seconds
        )
        pool.make_connection()  # type: ignore[no-untyped-call]  # not open yet, but has its options
        self._make_connection: Callable[[], AbstractConnection] = pool.make_connection
        self._timeout_seconds = timeout_seconds
        self._line: RedisLine | None = None
        self._opening: asyncio.Task[RedisLine] | None = None

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        rest = (len(keys), *keys, *arguments)
        try:
            return await self.send("EVALSHA", script.digest, *rest)
        except NoScriptError:
            return await self.send("EVAL", script.source, *rest)

    async def send(self, *command: Argument) -> Any:
        """The answer to one command. The library's own client would not do in a task that is to be
        cancelled: it takes a cancellation that comes with its last byte for none."""
        line = self._line
        if line is None or not line.is_open:
            line = await self._connect()
        return await line.send(pack_command(command))  # type: ignore[arg-type]  # stub knows one

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._line is not None:
            await self._line.close()
            self._line = None

    async def _connect(self) -> RedisLine:
        """All who wait share one attempt: one after the other would wait for the sum of theirs."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> RedisLine:
        connection = self._make_connection()
        try:
            # The library bounds the connection, but not the server's first words on it: one that
            # hangs accepts and says nothing.
            async with asyncio.timeout(self._timeout_seconds):
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise RedisTimeoutError("no connection in time") from None
            raise
        self._line = RedisLine(connection, self._timeout_seconds)
        return self._line

    def _opened(self, task: asyncio.Task[RedisLine]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # whoever asked may have gone
