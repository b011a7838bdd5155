"""Scripts over one connection: each is sent as it comes, and answers arrive in the same order.

A pool of connections, each with one command at a time, costs three times the processor time of the
scripts themselves: taking one, a Python encoder, a timeout around each read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

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
        """`ValueError` for a URL that is none of Redis's."""
        # Reads wait for scripts as long as there are none: time is kept here, for each script.
        pool: ConnectionPool = ConnectionPool.from_url(
            url, socket_timeout=None, socket_connect_timeout=timeout_seconds
        )
        self._make_connection: Callable[[], AbstractConnection] = pool.make_connection
        self._timeout_seconds = timeout_seconds
        self._connecting = asyncio.Lock()
        self._line: _Line | None = None

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._send("EVALSHA", script.digest, *rest)
        except NoScriptError:
            return await self._send("EVAL", script.source, *rest)

    async def close(self) -> None:
        if self._line is not None:
            await self._line.close(RedisConnectionError("the store is closed"))
            self._line = None

    async def _send(self, *command: Argument) -> Any:
        line = self._line
        if line is None or not line.is_open:
            line = await self._connect()
        packed = pack_command(command)  # type: ignore[arg-type]  # its stub knows one argument
        return await line.send(packed, self._timeout_seconds)

    async def _connect(self) -> _Line:
        async with self._connecting:
            if self._line is None or not self._line.is_open:
                connection = self._make_connection()
                await connection.connect()  # type: ignore[no-untyped-call]
                self._line = _Line(connection)
            return self._line


class _Line:
    """One connection and the scripts whose answers are on their way."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.is_open = True
        self._connection = connection
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._reader = asyncio.create_task(self._read_for_ever())

    async def send(self, packed: bytes, timeout_seconds: float) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(answer)
        timer = loop.call_later(timeout_seconds, self._on_late, answer)
        try:
            # The connection is open and checks no health: it is written to before anything waits,
            # so that answers come in the order of `_waiting`.
            await self._connection.send_packed_command(packed, check_health=False)
        except BaseException:
            # Cut off in the middle of a command, perhaps: nothing may follow it.
            timer.cancel()
            answer.cancel()
            self._abandon(RedisConnectionError("a command could not be sent"))
            raise
        try:
            return await answer
        finally:
            timer.cancel()

    async def close(self, error: Exception) -> None:
        self._abandon(error)
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._connection.disconnect(nowait=True)

    async def _read_for_ever(self) -> None:
        read, waiting = self._connection.read_response, self._waiting
        try:
            while True:
                try:
                    result, error = await read(), None
                except ResponseError as raised:
                    result, error = None, raised
                answer = waiting.popleft()
                if answer.done():
                    continue  # whoever asked has gone
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)
        except (RedisError, OSError) as broken:
            self._fail(broken)
        finally:
            self.is_open = False
            await self._connection.disconnect(nowait=True)

    def _on_late(self, answer: asyncio.Future[Any]) -> None:
        """One script that is late holds up all behind it: they are sent again elsewhere."""
        if not answer.done():
            self._abandon(RedisTimeoutError("no answer in time"))

    def _abandon(self, error: Exception) -> None:
        self._fail(error)
        self._reader.cancel()

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)
