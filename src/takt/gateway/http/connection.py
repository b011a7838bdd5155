"""A client's connection: requests are answered one after the other, each in its turn."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import sys
import termios
from typing import Protocol, cast

from takt.gateway.errors import GatewayError, error_answer
from takt.gateway.http.application import Application
from takt.gateway.http.exchange import Exchange
from takt.gateway.http.fields import Headers
from takt.gateway.http.limits import MIN_READ_BYTES
from takt.gateway.http.request_reader import RequestReader
from takt.gateway.prompt_task import start_now

logger = logging.getLogger("takt.gateway.http")

HEAD_SECONDS = 30.0
"""For a request's line and fields, from its first byte, or from a new connection on."""

BODY_IDLE_SECONDS = 30.0
"""Between two pieces of a body: a client that stops would keep a place among those in flight."""

BODY_SECONDS = 600.0
"""For all of a body, however steadily it drips."""

MAX_TLS_WRITE_BYTES = 65_536
"""At once: TLS hands all of one write to the transport below, where nobody sees what is unsent."""

LINGER_SECONDS = 2.0
"""After the last answer of a connection whose client may still be sending: closed at once, the
answer could be lost with what was not read."""

MAX_SKIPPED_BYTES = 65_536
"""Of a refused request's body: a longer one is not read for the connection's sake."""

MAX_TURNED_AWAY = 256
"""Connections beyond the limit that are told so at a time; further ones are closed at once."""

_NEVER = float("inf")


class Site(Protocol):
    """What the connections of a server share."""

    application: Application
    connections: set[ClientConnection]
    turned_away: set[ClientConnection]
    """Those that came when there were `max_connections`, and are told so."""
    max_connections: int
    keep_alive_seconds: float
    read_seconds: float
    date_line: str


class ClientConnection(asyncio.Protocol):
    """Its times are kept by `check`, which somebody must call now and then: timers of each request
    cost more than all of them together."""

    def __init__(self, site: Site, loop: asyncio.AbstractEventLoop) -> None:
        self.is_closing = False
        self._site = site
        self._application = site.application
        self._loop = loop
        self._reader = RequestReader(self, site.application.max_body_bytes)
        self._current: Exchange | None = None
        """The request whose turn it is; those that wait are the reader's."""
        self._ahead: list[bytes] = []
        """What came behind a whole request while that is answered."""
        self._task: asyncio.Task[None] | None = None
        """Goes on with an answer that could not be given at once."""
        self._is_handling = self._is_starting = False
        self._is_deaf = False
        """Nothing more is read from the client."""
        self._is_leaving = False
        """Its last answer is whole, and may still be on its way."""
        self._is_reading_paused = False
        self._deadline = loop.time() + HEAD_SECONDS
        self._head_until = self._body_until = _NEVER
        self.is_writing_paused = False
        """The client has not read all of what was written."""
        self._num_written = self._num_read = 0
        """Bytes of answers; `_num_read` had reached the client's kernel at `_read_at`."""
        self._read_at = loop.time()

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A write is the system call, at once, and what the kernel does not take is known.
        # high=0 would never let a TLS transport write.
        self._transport.set_write_buffer_limits(high=1, low=0)
        site = self._site
        if len(site.connections) < site.max_connections:
            site.connections.add(self)
        elif len(site.turned_away) < MAX_TURNED_AWAY:
            site.turned_away.add(self)
            self._refuse_all(_too_many(site.max_connections))
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = self._is_deaf = True
        self._site.connections.discard(self)
        self._site.turned_away.discard(self)
        self._ahead.clear()
        if self._task is not None and not (self._current and self._current.is_claiming):
            self._task.cancel()
        if self._current is not None and not self._is_handling:
            self._dismiss(self._current)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        current = self._current
        if self.is_writing_paused if current is None else current.is_received:
            self._ahead.append(data)
            self._is_reading_paused = True
            self._transport.pause_reading()
            return
        self._reader.feed(data)
        self._advance()

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        if self._is_leaving:
            # Not from within the transport's own write.
            self._loop.call_soon(self._say_end)
        elif self._current is None:
            self._advance()
        elif self._current.on_drained is not None:
            self._current.on_drained()

    @property
    def date_line(self) -> str:
        return self._site.date_line

    @property
    def is_idle(self) -> bool:
        """No request is being answered."""
        return self._current is None

    def write(self, data: bytes) -> None:
        if self.is_closing:
            return
        self._num_written += len(data)
        if len(data) <= MAX_TLS_WRITE_BYTES or self._transport.can_write_eof():
            self._transport.write(data)
            return
        view = memoryview(data)
        for at in range(0, len(data), MAX_TLS_WRITE_BYTES):
            self._transport.write(view[at : at + MAX_TLS_WRITE_BYTES])

    def close(self) -> None:
        """After what was written has left."""
        self.is_closing = self._is_deaf = True
        self._transport.close()

    def abort(self) -> None:
        self.is_closing = self._is_deaf = True
        self._transport.abort()

    # -- turns --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Does all that can be done with what has come."""
        while not self._is_deaf:
            if self._current is None and not self._take_turn():
                return
            current = self._current
            assert current is not None, "it is somebody's turn"
            if not current.is_received and self._ahead:
                self._reader.feed(self._ahead.pop(0))
            elif not current.is_received:
                self._wait_for_body(current)
                return
            elif current.problem is None:
                self._start(current)
                return
            else:
                self._refuse(current, current.problem)

    def _go_on(self) -> None:
        if self._current is None:
            self._advance()

    def _take_turn(self) -> bool:
        """Whether there was a request whose turn it could be.

        None is answered to a client that has not read the answer before it.
        """
        if self.is_writing_paused:
            return False
        reader = self._reader
        while not reader.exchanges:
            if reader.error is not None:
                self._refuse_all(reader.error)
                return False
            if not self._ahead:
                self._wait_for_head()
                return False
            reader.feed(self._ahead.pop(0))
        current = self._current = reader.exchanges.popleft()
        self._body_until = self._loop.time() + BODY_SECONDS
        if current.problem is not None:
            return True
        try:
            self._application.admit(current)
            current.is_admitted = True
        except GatewayError as error:
            current.problem = error
        else:
            if not current.is_received and current.expects_continue:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _wait_for_head(self) -> None:
        self._resume_reading()
        now = self._loop.time()
        if self._reader.is_in_head:
            self._head_until = min(self._head_until, now + HEAD_SECONDS)
            self._deadline = self._head_until
        elif self._head_until != _NEVER or self._body_until != _NEVER:
            # Behind an answer. On a new connection the first byte has the time of a head.
            self._head_until = _NEVER
            self._deadline = now + self._site.keep_alive_seconds

    def _wait_for_body(self, current: Exchange) -> None:
        self._resume_reading()
        self._head_until = _NEVER
        if self._reader.error is not None:
            self._refuse(current, self._reader.error)
        elif current.problem is not None and not _may_be_skipped(current):
            self._refuse(current, current.problem)
        else:
            self._deadline = min(self._loop.time() + BODY_IDLE_SECONDS, self._body_until)

    def _start(self, current: Exchange) -> None:
        self._head_until = self._deadline = _NEVER
        current.join_body()
        self._is_handling = self._is_starting = True
        self._task = start_now(self._run(current), self._loop)
        self._is_starting = False
        if self._current is None:
            # Answered at once. Thousands may follow in one packet, and others wait for their turn.
            self._loop.call_soon(self._go_on)

    async def _run(self, current: Exchange) -> None:
        try:
            await self._application.handle(current)
        except asyncio.CancelledError:
            if not self.is_closing:
                self.abort()
            raise
        except Exception:
            logger.exception("a request failed here")
        self._task, self._is_handling = None, False
        self._end_turn(current)
        if not self._is_starting:
            self._advance()

    def _end_turn(self, current: Exchange) -> None:
        self._current = None
        if self.is_closing:
            return
        if not current.is_answered:
            # Broken off: only a broken connection tells a client that its answer is not whole.
            self.abort()
        elif not (current.keeps_alive and current.is_received):
            self._linger()

    def _refuse(self, current: Exchange, error: GatewayError) -> None:
        self._dismiss(current)
        self._application.refused(error)
        if not current.is_received:
            current.keeps_alive = False
        answer = error_answer(error)
        current.send(answer.head.status, answer.head.headers, answer.body)
        self._end_turn(current)

    def _refuse_all(self, error: GatewayError) -> None:
        """Whatever the client asks for: no request of its was understood, or is looked at."""
        nobody = Exchange(self, "GET", "", Headers([]), is_http10=False, keeps_alive=False)
        self._refuse(nobody, error)

    def _dismiss(self, current: Exchange) -> None:
        if current.is_admitted:
            current.is_admitted = False
            self._application.dismiss(current)

    # -- ends ---------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Ends what takes too long."""
        if not self._reads_on(now):
            self.abort()
        elif now >= self._deadline:
            self._deadline = _NEVER
            self._on_late()

    def _reads_on(self, now: float) -> bool:
        """Whether the client reads its answer as fast as it must at least."""
        if self._num_read == self._num_written:
            self._read_at = now
            return True
        num_unread = self._transport.get_write_buffer_size() + self._num_in_kernel()
        num_read = self._num_written - num_unread
        if num_unread == 0 or num_read - self._num_read >= MIN_READ_BYTES:
            self._read_at, self._num_read = now, num_read
            return True
        return now - self._read_at <= self._site.read_seconds

    def _on_late(self) -> None:
        if self._is_deaf:
            self.abort()
        elif self._current is not None:
            late = GatewayError(408, "body_timeout", "The body stopped, or took too long to come.")
            self._refuse(self._current, late)
        elif self._reader.is_in_head:
            self._reader.error = GatewayError(
                408, "head_timeout", "The head took too long to come."
            )
            self._advance()
        else:
            self.close()

    def _linger(self) -> None:
        """Closes once the client has, or a while after the last answer has left; what the client
        still sends is not looked at."""
        self._is_deaf = self._is_leaving = True
        self._ahead.clear()
        self._deadline = _NEVER
        self._resume_reading()
        if not self.is_writing_paused:
            self._say_end()

    def _say_end(self) -> None:
        if self.is_closing or self._transport.is_closing():
            return
        if not self._transport.can_write_eof():
            self.close()
            return
        with contextlib.suppress(OSError):  # the client has gone: that will be told next
            self._transport.write_eof()
        self._deadline = self._loop.time() + LINGER_SECONDS

    def _num_in_kernel(self) -> int:
        """Bytes that the kernel has taken and the client's has not acknowledged. It may take
        megabytes, and takes more only once a good part of them is gone."""
        try:
            packed = fcntl.ioctl(
                self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4)
            )
        except (OSError, ValueError):  # it is closed already
            return 0
        return int.from_bytes(packed, sys.byteorder)

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()


def _too_many(max_connections: int) -> GatewayError:
    return GatewayError(
        503,
        "too_many_connections",
        f"{max_connections} connections are open, the most there may be (--max-connections).",
        retry_after_seconds=1,
    )


def _may_be_skipped(refused: Exchange) -> bool:
    """Whether to wait for the rest of a refused request's body, and keep the connection."""
    return (
        refused.keeps_alive
        and not refused.expects_continue
        and max(refused.content_length or 0, refused.num_body_bytes) <= MAX_SKIPPED_BYTES
    )
