"""Scripts over one connection: each is sent as it comes, and answers arrive in the same order.

A pool of connections, each with one command at a time, costs three times the processor time of the
scripts themselves: taking one, a Python encoder, a timeout around each read.
"""

from __future__ import annotations

import asyncio
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
        self._line: _Line | None = None
        self._opening: asyncio.Task[_Line] | None = None

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._send("EVALSHA", script.digest, *rest)
        except NoScriptError:
            return await self._send("EVAL", script.source, *rest)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._line is not None:
            await self._line.close()
            self._line = None

    async def _send(self, *command: Argument) -> Any:
        line = self._line
        if line is None or not line.is_open:
            line = await self._connect()
        packed = pack_command(command)  # type: ignore[arg-type]  # its stub knows one argument
        return await line.send(packed, self._timeout_seconds)

    async def _connect(self) -> _Line:
        """All who wait share one attempt: one after the other would wait for the sum of theirs."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Line:
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
        self._line = _Line(connection)
        return self._line

    def _opened(self, task: asyncio.Task[_Line]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # whoever asked may have gone


class _Line:
    """One connection and the scripts whose answers are on their way."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.is_open = True
        self._connection = connection
        self._waiting: deque[asyncio.Future[Any]] = deque()
        writer = connection._writer
        assert writer is not None, "a line is made of an open connection"
        self._transport = writer.transport
        self._reader = asyncio.create_task(self._read_for_ever())
        # Not at the reader's own end: one that is cancelled before it began has none.
        self._reader.add_done_callback(self._hang_up)

    async def send(self, packed: bytes, timeout_seconds: float) -> Any:
        """One script that is late holds up all behind it: they fail together."""
        if not (self.is_open and self._connection.is_connected):
            # The library would connect again by itself, and nobody would read the answers.
            raise RedisConnectionError("the connection was lost")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        is_sent = False
        try:
            async with asyncio.timeout(timeout_seconds):
                # The connection is open and checks no health: it is written to before anything
                # waits, so that answers come in the order of `_waiting`.
                await self._connection.send_packed_command(packed, check_health=False)
                is_sent = True
                return await answer
        except TimeoutError:
            self._abandon(RedisTimeoutError("no answer in time"))
            raise RedisTimeoutError("no answer in time") from None
        except BaseException:
            if not is_sent:
                # Cut off in the middle of a command, perhaps: nothing may follow it.
                answer.cancel()
                self._abandon(RedisConnectionError("a command could not be sent"))
            raise

    async def close(self) -> None:
        self._abandon(RedisConnectionError("the store is closed"))
        await asyncio.wait([self._reader])

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

    def _hang_up(self, _: asyncio.Task[None]) -> None:
        self.is_open = False
        # Closing alone would wait until a server that reads nothing has taken what was written.
        self._transport.abort()
        self._connection._close()  # type: ignore[no-untyped-call]

    def _abandon(self, error: Exception) -> None:
        self._fail(error)
        self._reader.cancel()

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)
