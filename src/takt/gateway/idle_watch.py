"""Ends what is awaited for too long, with one timer for an answer and none for a piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleWatch:
    """Between `begin` and `end` something is awaited; `on_idle` is called if that takes longer than
    `seconds`, and has to end it. `close` must follow."""

    def __init__(self, seconds: float, on_idle: Callable[[], object]) -> None:
        self.is_idle = False
        self._seconds = seconds
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer = self._loop.call_later(seconds, self._look)

    def begin(self) -> None:
        self._since = self._loop.time()

    def end(self) -> None:
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds
        if self._since is not None:
            left += self._since - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self.is_idle = True
        self._on_idle()
