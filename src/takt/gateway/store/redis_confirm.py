"""Has unwritten claims written to the file of Redis, off the path of their requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

from takt.gateway.store.base import Held

logger = logging.getLogger("takt.gateway")

CONFIRM_SECONDS = 0.05
"""After a claim. A request that ends sooner needs none: its end writes the whole record."""

GAP_SECONDS = 0.01
"""Between two batches, that a busy gateway does not send a batch for each claim."""


class ClaimConfirmer:
    """One timer serves all claims: it is for the one that has waited longest."""

    def __init__(self, confirm: Callable[[Held], Awaitable[object]]) -> None:
        """`confirm` makes a claim durable if it is held still."""
        self._confirm = confirm
        self._due_at: dict[Held, float] = {}
        """By the loop's clock, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    def add(self, held: Held) -> None:
        loop = asyncio.get_running_loop()
        self._due_at[held] = loop.time() + CONFIRM_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(CONFIRM_SECONDS, self._on_due, loop)

    def discard(self, held: Held) -> None:
        """It is durable, or lost."""
        self._due_at.pop(held, None)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_at.clear()
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)

    def _on_due(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        due = list(itertools.takewhile(lambda held: self._due_at[held] <= now, self._due_at))
        for held in due:
            del self._due_at[held]
        if due:
            batch = loop.create_task(self._confirm_all(due))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        oldest = next(iter(self._due_at.values()), None)
        self._timer = (
            None
            if oldest is None
            else loop.call_at(max(oldest, now + GAP_SECONDS), self._on_due, loop)
        )

    async def _confirm_all(self, due: list[Held]) -> None:
        results = await asyncio.gather(*map(self._confirm, due), return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            # Whatever their holders write next makes them durable, a sign of life at the latest.
            logger.warning(
                "%d claims are not in the store's file before their next sign of life: %s",
                len(errors),
                errors[0],
            )
