"""An answer while it comes: one writer, any number of readers, each at its own pace."""

from __future__ import annotations

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
    """Pieces of an answer in memory. Readers hear of it once there is something to read."""

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
        self._readers: list[Callable[[], None]] = []

    @property
    def tail(self) -> bytes:
        """The last four bytes, or all there are: enough to see an empty line."""
        tail = b""
        for piece in reversed(self.pieces):
            tail = piece[-4:] + tail
            if len(tail) >= 4:
                break
        return tail[-4:]

    def start(self, head: Head) -> None:
        """The answer is a stream, whose first piece is about to be appended."""
        self.head = head

    def append(self, data: bytes) -> None:
        self.pieces.append(data)
        self.num_bytes += len(data)
        self._tell()

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

    def subscribe(self, on_news: Callable[[], None]) -> None:
        """`on_news` is called, at once and in the writer's own turn, when there are new pieces or
        the end. A task that is woken for each piece costs several times what passing it on does."""
        self._readers.append(on_news)

    def unsubscribe(self, on_news: Callable[[], None]) -> None:
        self._readers.remove(on_news)

    def _end(self, ending: Ending) -> None:
        if self.ending is None:
            self.ending = ending
            self._tell()

    def _tell(self) -> None:
        for on_news in tuple(self._readers):
            on_news()
