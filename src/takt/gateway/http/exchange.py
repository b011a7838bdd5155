"""One request of a client's, and its answer on the connection that it came by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import unquote

from takt.gateway.errors import GatewayError
from takt.gateway.http.fields import Fields, Headers, has_no_body, head_bytes, status_line

MAX_JOINED_BYTES = 65_536
"""Of a body that is copied behind its head: for longer ones a second write costs less."""


class Wire(Protocol):
    """The connection, as an answer sees it."""

    is_closing: bool

    @property
    def is_writing_paused(self) -> bool: ...

    @property
    def date_line(self) -> str: ...

    def write(self, data: bytes) -> None:
        """Nothing, once the connection is closing."""
        ...


class Exchange:
    """`path` is decoded, `target` is as it was sent; `body` is whole when the request is handled.

    An answer is either `send`, or `begin`, any number of `write` and `end`. Towards a client that
    has gone all of them do nothing.
    """

    __slots__ = (
        "_head",
        "_is_chunked",
        "_more",
        "_wire",
        "body",
        "content_length",
        "headers",
        "is_admitted",
        "is_answered",
        "is_begun",
        "is_claiming",
        "is_http10",
        "is_received",
        "keeps_alive",
        "method",
        "num_body_bytes",
        "on_drained",
        "path",
        "problem",
        "query",
        "target",
    )

    def __init__(
        self,
        wire: Wire,
        method: str,
        target: str,
        headers: Headers,
        *,
        is_http10: bool,
        keeps_alive: bool,
    ) -> None:
        self._wire = wire
        self.method = method
        self.target = target
        path, _, self.query = target.partition("?")
        self.path = unquote(path) if "%" in path else path
        self.headers = headers
        length = headers.get("content-length")
        self.content_length: int | None = None if length is None else int(length)
        self.is_http10 = is_http10
        self.keeps_alive = keeps_alive
        """Whether another request may follow on the connection."""
        self.problem: GatewayError | None = None
        """Why the request is refused; its body is then not kept."""
        self.num_body_bytes = 0
        self.body = b""
        self._more = bytearray()
        """What came of the body behind its first piece, which mostly is all of it."""
        self.is_received = self.is_admitted = False
        self.is_claiming = False
        """Its key is being claimed: that is led to its end, with its client or without."""
        self.is_begun = self.is_answered = False
        self.on_drained: Callable[[], None] | None = None
        """Called when the client has read what was written; until then it `is_held_up`."""
        self._head = b""
        self._is_chunked = False

    @property
    def has_client(self) -> bool:
        return not self._wire.is_closing

    @property
    def is_held_up(self) -> bool:
        return self._wire.is_writing_paused

    @property
    def expects_continue(self) -> bool:
        """The client waits to be told to send its body; curl does with long ones."""
        asked = self.headers.get("expect")
        return asked is not None and asked.lower() == "100-continue" and not self.is_http10

    def receive(self, data: bytes) -> None:
        """A further piece of the body."""
        if self.body:
            self._more += data
        else:
            self.body = data

    def join_body(self) -> None:
        """All of the body has come."""
        if self._more:
            self.body += self._more
            self._more = bytearray()

    def drop_body(self) -> None:
        self.body, self._more = b"", bytearray()

    def send(self, status: int, fields: Fields, body: bytes) -> None:
        """All of an answer; a short one in one write."""
        is_head = self.method == "HEAD"
        if has_no_body(status) or (is_head and not body):
            framing, body = "", b""
        else:
            framing = f"Content-Length: {len(body)}\r\n"
            if is_head:
                body = b""
        head = self._make_head(status, fields, framing)
        self.is_begun = self.is_answered = True
        if len(body) > MAX_JOINED_BYTES:
            self._wire.write(head)
            self._wire.write(body)
        else:
            self._wire.write(head + body)

    def begin(self, status: int, fields: Fields) -> None:
        """An answer of unknown length. Its head goes with the first of its body."""
        self._is_chunked = not self.is_http10 and not has_no_body(status)
        if self.is_http10:
            # It knows no chunks: the body ends with the connection.
            self.keeps_alive = False
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        self._head = self._make_head(status, fields, framing)
        self._is_chunked = self._is_chunked and self.method != "HEAD"
        self.is_begun = True

    def write(self, data: bytes) -> None:
        if self.method == "HEAD" or not data:
            return
        head, self._head = self._head, b""
        if self._is_chunked:
            data = b"%b%x\r\n%b\r\n" % (head, len(data), data)
        elif head:
            data = head + data
        self._wire.write(data)

    def end(self) -> None:
        head, self._head = self._head, b""
        self.is_answered = True
        last = head + b"0\r\n\r\n" if self._is_chunked else head
        if last:
            self._wire.write(last)

    def _make_head(self, status: int, fields: Fields, framing: str) -> bytes:
        close = "" if self.keeps_alive else "Connection: close\r\n"
        return head_bytes(status_line(status), fields, f"{self._wire.date_line}{framing}{close}")
