"""An answer while it comes: one writer, any number of readers, each at its own pace."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from takt.gateway.errors import Answer, GatewayError
from takt.gateway.states import Head, State


class Ending(enum.Enum):
    COMPLETE = "complete"
    """The answer, whatever its status, is whole and recorded."""
    LOST = "lost"
    """Somebody else holds the record now: ask the store again."""
    ERROR = "error"
    """There will be no answer; `Execution.error` says why."""


class Execution:
    """Pieces of an answer in memory. Readers see the head once there is something to read."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        self.num_bytes = 0
        self.ending: Ending | None = None
        self.state = State.PROCESSING
        self.error: GatewayError | None = None
        self.on_abandoned: Callable[[], object] | None = None
        """Set where the answer is of no use without a reader."""
        self._waiters: list[asyncio.Future[None]] = []

    def start(self, head: Head) -> None:
        """The answer is a stream and begins."""
        self.head = head
        self._wake()

    def append(self, data: bytes) -> None:
        self.pieces.append(data)
        self.num_bytes += len(data)
        self._wake()

    def complete(self, state: State, answer: Answer | None = None) -> None:
        """Ends; with `answer` as the whole of it unless pieces were appended."""
        if answer is not None:
            self.head = answer.head
            if answer.body:
                self.pieces.append(answer.body)
                self.num_bytes += len(answer.body)
        self.state = state
        self._end(Ending.COMPLETE)

    def lose(self) -> None:
        self._end(Ending.LOST)

    def fail(self, error: GatewayError) -> None:
        self.error = error
        self._end(Ending.ERROR)

    async def wait(self, position: int) -> None:
        """Returns when there is a piece at `position`, or the end. Cancellation is harmless."""
        while len(self.pieces) <= position and self.ending is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def wait_for_head(self) -> None:
        """Returns when a stream has begun or the answer has ended."""
        while self.head is None and self.ending is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _end(self, ending: Ending) -> None:
        if self.ending is None:
            self.ending = ending
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
