"""An answer while it comes and after: recorded once, read by any number of requests."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import Message

_KEY = "takt.recording"

_PIECE_BYTES = 64
"""What a piece costs beside its bytes."""


class Reader:
    """One request that is given a recording. Its event is set whenever there is news."""

    def __init__(self) -> None:
        self.is_gone = False
        self.news = asyncio.Event()


class Recording:
    """Start and body of an ASGI response, as `send` was given them."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.start: Message | None = None
        self.pieces: list[bytes] = []
        self.num_bytes = 0
        self.is_whole = False
        self.is_over = False
        """Nothing follows, whole or not."""
        self.has_failed = False
        """The stream has begun and ends with an error."""
        self.readers: set[Reader] = set()

    @property
    def is_success(self) -> bool:
        return (
            self.is_whole
            and not self.has_failed
            and self.start is not None
            and 200 <= self.start["status"] < 300
        )

    async def send(self, message: Message) -> None:
        """The ASGI `send` of whatever is recorded; never waits for a reader."""
        if message["type"] == "http.response.start":
            self.start = message
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body:
                self.pieces.append(body)
                self.num_bytes += len(body) + _PIECE_BYTES
            self.is_whole = not message.get("more_body", False)
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        for reader in self.readers:
            reader.news.set()


def mark(scope: MutableMapping[str, Any], recording: Recording) -> None:
    """Says in a request's scope that its response is recorded."""
    scope["extensions"] = {_KEY: {"recording": recording}}


def mark_failed(scope: MutableMapping[str, Any]) -> None:
    """A response that has begun ends with an error: nobody else is to be given it later."""
    extension = scope.get("extensions", {}).get(_KEY)
    if extension is not None:
        extension["recording"].has_failed = True
