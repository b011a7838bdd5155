"""Starts a coroutine in the caller's own turn; only what is left of it becomes a task.

A task begins a turn of the event loop later, and most of a request needs no turn but the one in
which it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

Work = Coroutine[Any, Any, None]


def start_now(work: Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """None if it has ended already. Raises what it raises until it waits for the first time.

    Until then `asyncio.current_task` is the caller's or none: it must not look at it, as
    `asyncio.timeout` does.
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
