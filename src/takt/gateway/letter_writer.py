"""The holder's side of a dead letter that is replayed."""

from __future__ import annotations

import asyncio

from takt.gateway.recorder import LeaseLostError, RecordWriter
from takt.gateway.states import REPLAY_INTERRUPTED, Attempt, Finish, Head, State
from takt.gateway.store.base import StoreUnavailableError

INTERRUPT_SECONDS = 5.0
"""How long a replay that is stopped waits for the store; without it the lease must expire."""


class LetterWriter(RecordWriter):
    """Every end but a success leaves the letter dead, with the request that the store has kept."""

    cause = ""
    """Of that end."""

    @property
    def has_news(self) -> bool:
        """A stream is shown once it has succeeded: until then it may come to nothing."""
        return False

    async def finish(
        self,
        state: State,
        head: Head | None,
        rest: bytes,
        *,
        cause: str = "",
        attempt: Attempt | None = None,
        request: bytes | None = None,
    ) -> None:
        self.cause = cause
        if state in (State.SUCCEEDED, State.DEAD):
            await super().finish(state, head, rest, cause=cause, attempt=attempt)
        else:
            # An answer of this state would tell the client that its request is not kept.
            await self._bury(cause, attempt)

    async def interrupt(self) -> None:
        """The replay stops here."""
        self.cause = REPLAY_INTERRUPTED
        try:
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await self._bury(REPLAY_INTERRUPTED, None)
        except (LeaseLostError, StoreUnavailableError, TimeoutError):
            return

    async def _bury(self, cause: str, attempt: Attempt | None) -> None:
        end = Finish(state=State.DEAD, ttl_ms=1000 * self._ttl.dead, cause=cause, attempt=attempt)
        await self._write(lambda: self._store.finish(self.held, end))
