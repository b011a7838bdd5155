"""One connection to a Redis, and the commands whose answers are on their way.

The library makes the connection: TLS, password, database. Then its reader, which takes a task and
several layers for each answer, gives way to one that is called with the bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    BusyLoadingError,
    InvalidResponse,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from takt.gateway.prompt_task import Arrival

_ERRORS: dict[str, type[RedisError]] = {"NOSCRIPT": NoScriptError, "LOADING": BusyLoadingError}

_NOT_YET = object()


class RedisLine(asyncio.Protocol):
    """Commands are sent as they come, and answers arrive in the same order. One that is late holds
    up all behind it: they fail together, and the connection with them."""

    def __init__(self, connection: AbstractConnection, timeout_seconds: float) -> None:
        """`connection` is open, and nobody waits for an answer on it."""
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[tuple[Arrival[Any], float]] = deque()
        """Who waits for the answers to come, and since when."""
        self._timer: asyncio.TimerHandle | None = None
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=_as_error, notEnoughData=_NOT_YET
        )
        # Kept: its end would close the transport.
        self._connection = connection
        self._is_over: asyncio.Future[None] = self._loop.create_future()
        writer = connection._writer
        assert writer is not None, "a line is made of an open connection"
        self._transport = writer.transport
        self._transport.set_protocol(self)
        # A write is the system call, at once.
        self._transport.set_write_buffer_limits(high=1, low=0)
        if self._transport.is_closing():
            self._fail(RedisConnectionError("the connection was lost"))

    async def send(self, packed: bytes) -> Any:
        """The command's answer. Raises `RedisError`."""
        if not self.is_open:
            raise RedisConnectionError("the connection was lost")
        answer: Arrival[Any] = Arrival(self._loop)
        self._waiting.append((answer, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_seconds, self._look)
        self._transport.write(packed)
        return await answer

    async def close(self) -> None:
        """Returns once the connection is gone."""
        self._fail(RedisConnectionError("the store is closed"))
        await asyncio.wait([self._is_over], timeout=self._timeout_seconds)

    # -- the transport ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (result := self._reader.gets()) is not _NOT_YET:
                self._deliver(result)
        except InvalidResponse as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the server closed the connection" if exc is None else type(exc).__name__
        self._fail(RedisConnectionError(reason))
        if not self._is_over.done():
            self._is_over.set_result(None)

    def _deliver(self, result: Any) -> None:
        if isinstance(result, hiredis.PushNotification):
            return  # nobody asked for it
        if not self._waiting:
            self._fail(RedisConnectionError("an answer came without a command"))
            return
        answer, _ = self._waiting.popleft()
        if answer.done():
            return  # whoever asked has gone
        if isinstance(result, RedisError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _look(self) -> None:
        """Whether the oldest command has waited for too long: one timer serves all of them."""
        self._timer = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + self._timeout_seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._fail(RedisTimeoutError("no answer in time"))

    def _fail(self, error: RedisError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            answer, _ = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)
        if self.is_open:
            self.is_open = False
            # Closing alone would wait until a server that reads nothing has taken what was written.
            self._transport.abort()
            self._connection._close()  # type: ignore[no-untyped-call]


def _as_error(text: str) -> RedisError:
    code, _, rest = text.partition(" ")
    kind = _ERRORS.get(code)
    return ResponseError(text) if kind is None else kind(rest)
