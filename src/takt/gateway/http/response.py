"""An upstream's answer while it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from takt.gateway.http.decoding import Decoder, encoding_to_undo
from takt.gateway.http.fields import Headers

Sink = Callable[[bytes], None]


class BrokenExchangeError(Exception):
    """A request was sent, and its answer did not come, or not whole.

    `is_late` if that took too long.
    """

    def __init__(self, cause: str, *, is_late: bool = False) -> None:
        super().__init__(cause)
        self.is_late = is_late


class EnoughError(Exception):
    """Raised by a sink that wants nothing more. It is no error of the reading."""


class Response:
    """Head and body. One reader, which is given each piece in the moment in which it comes: a task
    that is woken for every piece costs several times what passing it on does."""

    __slots__ = (
        "_decoder",
        "_done",
        "_error",
        "_has_enough",
        "_pieces",
        "_sink",
        "headers",
        "is_whole",
        "status",
    )

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.is_whole = False
        """All of the body has come."""
        encoding = encoding_to_undo(headers)
        self._decoder = None if encoding is None else Decoder(encoding)
        self._pieces: list[bytes] = []
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._has_enough = False

    @property
    def has_whole(self) -> bool:
        """Whether `whole` has the body."""
        return self.is_whole and self._decoder is None

    def whole(self) -> bytes | None:
        """The body, if all of it has come already: short ones do, with their head."""
        if not self.has_whole:
            return None
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self, sink: Sink) -> None:
        """Gives `sink` the body as it comes, and returns at its end or once `sink` has enough.

        Raises `BrokenExchangeError`, `BadEncodingError`, or what `sink` raises, which ends it, but
        for `EnoughError`.
        """
        self._sink = sink
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            self._give(piece)
        if self._error is None and not (self.is_whole or self._has_enough):
            self._done = asyncio.get_running_loop().create_future()
            await self._done
        if self._has_enough:
            return
        if self._error is not None:
            raise self._error
        if self._decoder is not None:
            self._decoder.end()

    # -- what the connection calls ------------------------------------------------------------

    def take(self, data: bytes) -> None:
        if self._sink is None:
            self._pieces.append(data)
        else:
            self._give(data)

    def end(self) -> None:
        self.is_whole = True
        self._finish()

    def fail(self, error: Exception) -> None:
        if self._error is None and not self.is_whole:
            self._error = error
            self._finish()

    def _give(self, data: bytes) -> None:
        if self._error is not None or self._has_enough:
            return
        assert self._sink is not None, "somebody reads"
        try:
            if self._decoder is None:
                self._sink(data)
            else:
                for piece in self._decoder.feed(data):
                    self._sink(piece)
        except EnoughError:
            self._has_enough = True
            self._finish()
        except Exception as error:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
