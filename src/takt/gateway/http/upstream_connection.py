"""A connection to an upstream: one request at a time, and its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import httptools

from takt.gateway.http.fields import (
    MAX_HEAD_BYTES,
    FieldReader,
    Headers,
    has_no_body,
    is_chunked_only,
)
from takt.gateway.http.response import BrokenExchangeError, Response
from takt.gateway.prompt_task import Arrival

MAX_ANSWER_HEAD_BYTES = 4 * MAX_HEAD_BYTES

LEAVE_SECONDS = 0.1
"""Servers send the last chunk of a stream right behind its end mark, often in another packet."""


class UpstreamConnection(asyncio.Protocol):
    """`on_free` is called when it may carry another request. Everything else closes it: an answer
    cut off, bytes that nobody asked for, a reader that leaves before the end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_free: Callable[[UpstreamConnection], None]
    ) -> None:
        self.is_open = False
        self.free_since = 0.0
        self._loop = loop
        self._on_free = on_free
        self._parser = httptools.HttpResponseParser(self)
        self._fields = FieldReader()
        self._is_in_head = False
        self._num_head_bytes = 0
        self._head: Arrival[Response] | None = None
        """Somebody waits for an answer to begin."""
        self._exchange: Arrival[Response] | None = None
        """Of the request whose answer is not whole yet: the future that its head was given to."""
        self._response: Response | None = None
        """The answer that comes now."""
        self._pieces: list[bytes] = []
        self._is_bodiless = self._is_until_close = self._is_ended = False
        self._keeps_alive = True
        self._timer: asyncio.TimerHandle | None = None
        """Goes off no later than the answer is late, and runs on behind it: a timer made and ended
        for each request costs more than one that looks again."""
        self._head_until = self._idle_seconds = 0.0
        self._last_at = 0.0
        self._close_at = math.inf
        """Nobody reads the rest of the answer: the connection is closed if it takes longer."""

    # -- one request and its answer -----------------------------------------------------------

    async def send(
        self, request: bytes, *, is_head: bool, response_seconds: float, idle_seconds: float
    ) -> Response:
        """The answer's head. `request` is all of it, in bytes; `is_head` if its method is HEAD.

        From here on an answer that does not begin within `response_seconds`, or stands still for
        `idle_seconds`, is broken. Raises `BrokenExchangeError`: whether the request was executed is
        not known then.
        """
        self._is_bodiless = is_head
        self._idle_seconds = idle_seconds
        head: Arrival[Response] = Arrival(self._loop)
        self._head = self._exchange = head
        self._close_at = math.inf
        self._head_until = self._loop.time() + response_seconds
        self._wake_at(self._head_until)
        self._transport.write(request)
        try:
            return await head
        except asyncio.CancelledError:
            # Behind a whole answer the connection may be another request's already.
            if self._exchange is head:
                self.close()
            raise

    def close(self) -> None:
        """At once, if the connection is still in use; what comes of an answer is then lost."""
        self._break(BrokenExchangeError("it was given up"))

    def leave(self) -> None:
        """As `close`, for an answer whose end should be there in a moment: if it comes within
        `LEAVE_SECONDS`, the connection may be used again."""
        if self._response is None:
            self.close()
            return
        self._close_at = self._loop.time() + LEAVE_SECONDS
        self._wake_at(self._close_at)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """The answer takes too long, or will be looked at again."""
        self._timer = None
        if self._head is not None:
            until, problem = self._head_until, "no answer in time"
        elif self._response is not None:
            until = min(self._last_at + self._idle_seconds, self._close_at)
            problem = "the answer stood still"
        else:
            return
        if self._loop.time() < until:
            self._wake_at(until)
        else:
            self._break(BrokenExchangeError(problem, is_late=True))

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._response is not None and self._is_until_close and exc is None:
            self._end(self._response, is_reusable=False)
        self._break(
            BrokenExchangeError("the connection was closed" if exc is None else type(exc).__name__)
        )

    def data_received(self, data: bytes) -> None:
        if self._head is None and self._response is None:
            # Nobody asked: it would be taken for the next request's answer.
            self._break(BrokenExchangeError("bytes came without a request"))
            return
        if self._is_in_head:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, BrokenExchangeError):
                raise cause or error from None
            self._break(cause)
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keeps_alive = False
            self._deliver()
            self._break(BrokenExchangeError("the answer is not valid HTTP/1.1"))
            return
        if self._is_in_head and self._num_head_bytes > MAX_ANSWER_HEAD_BYTES:
            self._break(BrokenExchangeError("the answer's head is too long"))
            return
        self._deliver()

    def _deliver(self) -> None:
        """Passes on what the parser has found."""
        response = self._response
        if response is None:
            return
        pieces = self._pieces
        if pieces:
            self._pieces = []
            response.take(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._is_ended:
            self._end(response, is_reusable=self._keeps_alive)
            return
        if self._head is not None:
            # The head has come, and the body not yet all: from now on its pieces are waited for.
            self._wake_at(self._loop.time() + self._idle_seconds)
            self._last_at = self._loop.time()
            self._give_head(response)
            return
        self._last_at = self._loop.time()

    def _give_head(self, response: Response) -> None:
        head, self._head = self._head, None
        if head is not None and not head.done():
            head.set_result(response)

    def _end(self, response: Response, *, is_reusable: bool) -> None:
        self._response = self._exchange = None
        self._is_ended = False
        response.end()
        if is_reusable and self.is_open and not self._transport.get_write_buffer_size():
            self._on_free(self)
        else:
            self._hang_up()
        # Last: whoever waits goes on at once, and may ask for another answer.
        self._give_head(response)

    def _break(self, error: BrokenExchangeError) -> None:
        self._exchange = None
        head, self._head = self._head, None
        response, self._response = self._response, None
        if head is not None and not head.done():
            head.set_exception(error)
        if response is not None:
            response.fail(error)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    # -- what the parser finds ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is not None:
            # A second answer to one request.
            self._keeps_alive = False
        self._is_in_head = True
        self._num_head_bytes = 0
        self._fields = FieldReader()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # else it stands behind a chunked body, where it is of no use
            self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        status = self._parser.get_status_code()
        if self._response is not None or status < 200:
            return  # a second answer, or one that only says that the first is to come
        headers = Headers(self._fields.pairs)
        if not is_chunked_only(headers):
            raise BrokenExchangeError("the answer has a transfer coding that is not known here")
        self._response = Response(status, headers)
        self._is_ended = self._is_bodiless or has_no_body(status)
        # What a parser made for HEAD would know: where this answer ends, and where the next begins.
        self._keeps_alive = not self._is_bodiless and self._parser.should_keep_alive()
        self._is_until_close = not ("content-length" in headers or "transfer-encoding" in headers)

    def on_body(self, data: bytes) -> None:
        if self._response is not None and not self._is_ended:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._response is not None:
            self._is_ended = True
