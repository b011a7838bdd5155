"""The holder's side of a record: writes attempts, pieces of the answer and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from takt.gateway.execution import Execution
from takt.gateway.policy import Ttl
from takt.gateway.sealing import Sealer
from takt.gateway.states import Attempt, Finish, Head, State
from takt.gateway.store.base import Held, Store, StoreUnavailableError
from takt.gateway.upstream import Upstream

STORE_PATIENCE_SECONDS = 60.0
"""How long an answer that is there waits for the store to take it."""

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.02, 1.0


class LeaseLostError(Exception):
    """A newer token exists, or the record is gone."""


class Recorder(Protocol):
    async def begin_attempt(self, upstream: Upstream) -> None: ...

    async def end_attempt(self, attempt: Attempt) -> None: ...

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
        """Returns once the end is recorded; `rest` follows what the execution holds."""
        ...


class NoRecorder:
    """Of a request without a key: nothing is kept."""

    async def begin_attempt(self, upstream: Upstream) -> None:
        return

    async def end_attempt(self, attempt: Attempt) -> None:
        return

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
        return


class RecordWriter:
    """Implements `Recorder` on a store.

    Calls raise `LeaseLostError` once somebody else holds the record, and `StoreUnavailableError`
    if the store stays away for `STORE_PATIENCE_SECONDS`.
    """

    def __init__(
        self, store: Store, sealer: Sealer, held: Held, execution: Execution, ttl: Ttl
    ) -> None:
        self.held = held
        self.is_lost = False
        self._is_finishing = False
        self.on_lost: Callable[[], object] = lambda: None
        self._store = store
        self._sealer = sealer
        self._execution = execution
        self._ttl = ttl
        self._flush: asyncio.Future[None] | None = None
        """Of a chunk that is being written; the end waits for it."""
        self._num_pieces = 0
        self._num_chunks = 0
        # A chunk whose writing was not acknowledged is written again as it was: had it grown, a
        # store that does have it would drop the rest.
        self._unacknowledged: bytes | None = None

    async def begin_attempt(self, upstream: Upstream) -> None:
        await self._write(
            lambda: self._store.begin_attempt(self.held, upstream.url, upstream.deduplicates)
        )

    async def end_attempt(self, attempt: Attempt) -> None:
        await self._write(lambda: self._store.end_attempt(self.held, attempt))

    @property
    def has_news(self) -> bool:
        return self._execution.head is not None and (self._num_pieces < len(self._execution.pieces))

    async def flush(self) -> None:
        """Writes what a stream has brought since the last time; other gateways read it."""
        if self.is_lost or self._is_finishing or not self._sealer.keeps_bodies or self._flush:
            return
        head = self._execution.head
        chunk = self._next_chunk()
        if head is None or chunk is None:
            return
        flush = self._flush = asyncio.get_running_loop().create_future()
        try:
            is_held = await self._store.append(self.held, head, self._num_chunks, [chunk])
        finally:
            self._flush = None
            if not flush.done():  # who waits for it may be cancelled, and it with them
                flush.set_result(None)
        if is_held:
            self._acknowledge()
        else:
            self.lose()

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
        self._is_finishing = True
        if self._flush is not None:
            await self._flush
        keeps = self._sealer.keeps_bodies
        chunks = self._last_chunks(rest) if keeps else ()
        kept = head
        if head is not None and not keeps:
            kept = Head(head.status, head.headers, is_body_kept=False)
        end = Finish(
            state=state,
            ttl_ms=1000 * int(getattr(self._ttl, state)),
            head=kept,
            first_chunk=self._num_chunks,
            chunks=chunks,
            cause=cause,
            attempt=attempt,
            request=None
            if request is None or not keeps
            else self._sealer.seal(self.held.digest, request),
        )
        await self._write(lambda: self._store.finish(self.held, end))

    def lose(self) -> None:
        """Somebody else holds the record: the attempt in flight is of no use any more.

        While the end is being written, that write says whether the record was still ours.
        """
        if not self.is_lost and not self._is_finishing:
            self.is_lost = True
            self.on_lost()

    def _next_chunk(self) -> bytes | None:
        if self._unacknowledged is None and self._num_pieces < len(self._execution.pieces):
            self._unacknowledged = self._seal(b"")
        return self._unacknowledged

    def _last_chunks(self, rest: bytes) -> tuple[bytes, ...]:
        first = () if self._unacknowledged is None else (self._unacknowledged,)
        return (*first, self._seal(rest))

    def _seal(self, rest: bytes) -> bytes:
        data = b"".join(self._execution.pieces[self._num_pieces :]) + rest
        self._num_pieces = len(self._execution.pieces)
        return self._sealer.seal(self.held.digest, data)

    def _acknowledge(self) -> None:
        self._unacknowledged = None
        self._num_chunks += 1

    async def _write(self, call: Callable[[], Awaitable[bool]]) -> None:
        if self.is_lost or not await persist(call):
            self.is_lost = True
            raise LeaseLostError


async def persist(
    call: Callable[[], Awaitable[bool]], patience_seconds: float = STORE_PATIENCE_SECONDS
) -> bool:
    """The call's result; tried again while the store is away, up to the patience given."""
    try:
        return await call()
    except StoreUnavailableError:
        return await _persist(call, patience_seconds)


async def _persist(call: Callable[[], Awaitable[bool]], patience_seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + patience_seconds
    wait = _FIRST_WAIT_SECONDS
    while True:
        await asyncio.sleep(wait)
        try:
            return await call()
        except StoreUnavailableError:
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            if loop.time() + wait > give_up_at:
                raise
