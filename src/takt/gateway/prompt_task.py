"""Coroutines that begin, and go on, in the turn of the event loop in which they can.

A task begins a turn later than it could, and wakes a turn later: most of a request needs no turns
but the two in which it and its answer came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

Work = Coroutine[Any, Any, None]


def start_now(work: Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """What is left of it as a task; None if it has ended already.

    Raises what it raises until it waits for the first time. Until then `asyncio.current_task` is
    the caller's or none: it must not look at it, as `asyncio.timeout` does.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_Begun(work, waits_for))


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine that has been started, as one that a task may start."""

    def __init__(self, work: Work, waits_for: Any) -> None:
        self._work = work
        self._waits_for: Any = waits_for
        """What it gave when it was started; None once the task has it."""

    def send(self, value: Any) -> Any:
        waits_for, self._waits_for = self._waits_for, None
        return self._work.send(value) if waits_for is None else waits_for

    def throw(self, *error: Any) -> Any:
        self._waits_for = None
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        raise TypeError("it belongs to its task")


class Arrival(Generic[T]):
    """A future whose one task goes on in the very turn in which the result comes.

    `asyncio.Future` wakes its tasks a turn later, as this does for anything but a result.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_context",
        "_error",
        "_is_done",
        "_loop",
        "_result",
        "_wake_up",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        """Set for a moment when a task is handed this to wait for."""
        self._loop = loop
        self._is_done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._wake_up: Callable[[Any], object] | None = None
        self._context: Context | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: T) -> None:
        """Runs the task. To be called from a callback of the loop, where no task runs already."""
        self._is_done, self._result = True, result
        wake_up, self._wake_up = self._wake_up, None
        if wake_up is not None:
            assert self._context is not None, "it came with the callback"
            self._context.run(wake_up, self)

    def set_exception(self, error: BaseException) -> None:
        self._is_done, self._error = True, error
        self._wake_later()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    # -- what a task asks of what it waits for ------------------------------------------------

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake_up: Callable[[Any], object], *, context: Context) -> None:
        assert self._wake_up is None, "one task waits for it"
        self._wake_up, self._context = wake_up, context
        if self._is_done:
            self._wake_later()

    def cancel(self, msg: Any = None) -> bool:
        if self._is_done:
            return False
        self.set_exception(asyncio.CancelledError())
        return True

    def _wake_later(self) -> None:
        wake_up, self._wake_up = self._wake_up, None
        if wake_up is not None:
            self._loop.call_soon(wake_up, self, context=self._context)
