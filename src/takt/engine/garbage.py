"""Python's garbage collection, moved out of the way of steps and of tokens."""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

from takt.clock import Clock

YOUNG_OBJECTS = 5_000
"""New containers after which a moment between two steps is used for a collection of the young."""

OLDER_AFTER = 16
"""Collections of a generation before the next one is looked at too."""


class GarbageCollector:
    """Collects when it is told to, never by itself, and remembers when that was.

    One for each process. What is there at `start` is never looked at again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_ns = 0
        self.total_ns = 0
        """Time that collections have taken so far, whoever asked for them."""
        self.last: deque[tuple[int, int]] = deque(maxlen=256)
        """Begin and end of the last ones, on the clock that was given."""

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Back to Python's own ways."""
        gc.callbacks.remove(self._on_collection)
        gc.enable()
        gc.unfreeze()

    @property
    def is_due(self) -> bool:
        """Whether there is so much that is young that `between_steps` would collect."""
        return gc.get_count()[0] >= YOUNG_OBJECTS

    def between_steps(self) -> None:
        """Collects what is young, if there is much of it: tens of microseconds, now and then."""
        young, middle, old = gc.get_count()
        if young < YOUNG_OBJECTS:
            return
        if middle < OLDER_AFTER:
            gc.collect(0)
        elif old < OLDER_AFTER:
            gc.collect(1)
        else:
            gc.collect(2)

    def when_idle(self) -> None:
        """Collects all that has come since `start`: some milliseconds, while nobody waits."""
        if any(gc.get_count()):
            gc.collect()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        now_ns = self._clock.now_ns()
        if phase == "start":
            self._begin_ns = now_ns
        else:
            self.total_ns += now_ns - self._begin_ns
            self.last.append((self._begin_ns, now_ns))
