"""Copies an upstream's stream into an execution, or verifies that it continues one exactly."""

from __future__ import annotations

from takt.gateway.attempt import AttemptFailedError
from takt.gateway.execution import Execution
from takt.gateway.retry import Failure, Outcome
from takt.gateway.states import Head
from takt.gateway.stream_end import StreamEnd, event_end, has_open_data


class StreamDivergedError(Exception):
    """A stream begun anew is not the one that clients have already seen a part of."""


class StreamCopy:
    """One attempt's stream. What the execution holds already must come again, byte for byte."""

    def __init__(self, execution: Execution, head: Head, *, expects_done: bool) -> None:
        self._execution = execution
        self._head = head
        self._expects_done = expects_done
        self._end = StreamEnd()
        self._seen = b"".join(execution.pieces)
        self._position = 0

    @property
    def rest(self) -> bytes:
        """What is held until the answer is recorded."""
        held = self._end.held
        return held + event_end(held) if self._expects_done and self._end.is_done else held

    @property
    def is_whole(self) -> bool:
        """The end mark has come, which nothing need follow."""
        return self._expects_done and self._end.is_whole

    def feed(self, piece: bytes) -> None:
        """Raises `StreamDivergedError`, or `AttemptFailedError` where the stream tells of an error.

        What came before the error is in the execution then.
        """
        self._pass(self._end.feed(piece))
        self._check_error()

    def _pass(self, passed: bytes) -> None:
        if self._position < len(self._seen):
            expected = self._seen[self._position : self._position + len(passed)]
            if not passed.startswith(expected):
                raise StreamDivergedError
            self._position += len(expected)
            passed = passed[len(expected) :]
        if not passed:
            return
        if self._execution.num_bytes == 0:
            self._execution.start(self._head)
        self._execution.append(passed)

    def check_end(self) -> None:
        """Raises if the stream ended too early."""
        self._end.end()
        self._check_error()
        if self._position < len(self._seen):
            raise StreamDivergedError
        if self._expects_done and not self._end.is_done:
            raise AttemptFailedError(_failure(Outcome.UNKNOWN, "it ended without [DONE]"))

    def _check_error(self) -> None:
        event = self._end.error
        if event is None:
            return
        # Behind an `event:` line it is left where it stands.
        is_elsewhere = self._position < len(self._seen)
        if is_elsewhere or has_open_data(b"".join(self._execution.pieces)):
            event = event_end(self._execution.tail) + event
        raise AttemptFailedError(_failure(Outcome.FAILED, "an error event", event))


def expects_done(path: str) -> bool:
    """Whether OpenAI's API ends streams of this path with `data: [DONE]`."""
    return path.endswith("/completions")


def _failure(outcome: Outcome, cause: str, body: bytes = b"") -> Failure:
    return Failure(kind="stream", outcome=outcome, cause=f"stream: {cause}", body=body)
