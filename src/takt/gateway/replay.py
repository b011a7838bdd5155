"""Answers from the store: those that have ended, and those that another gateway is writing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from takt.gateway.errors import (
    GatewayError,
    error_answer,
    failure_error,
    internal_error,
    store_unavailable,
)
from takt.gateway.execution import Ending, Execution
from takt.gateway.recorder import STORE_PATIENCE_SECONDS
from takt.gateway.sealing import Sealer, SealError
from takt.gateway.states import SETTLED, Head, State
from takt.gateway.store.base import Snapshot, Store, StoreUnavailableError

FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.01, 0.2

_ENDED = SETTLED | {State.FAILED_RETRYABLE}


def is_stream(head: Head) -> bool:
    return any(
        name.lower() == "content-type" and value.startswith("text/event-stream")
        for name, value in head.headers
    )


def settled_execution(snapshot: Snapshot, sealer: Sealer) -> Execution:
    """A recorded answer, as if it had just come."""
    execution = Execution(snapshot.record.fingerprint)
    _end(execution, snapshot, list(snapshot.chunks), sealer)
    return execution


class Follower:
    """Reads the answer that another gateway writes, until it ends or its writer is gone."""

    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        digest: str,
        token: int,
        execution: Execution,
        allows_takeover: Callable[[], bool],
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._digest = digest
        self._token = token
        self._execution = execution
        self._allows_takeover = allows_takeover
        self._num_chunks = 0

    async def run(self) -> None:
        """Ends the execution, in every case."""
        try:
            await self._follow()
        except Exception:
            self._execution.fail(internal_error())
            raise
        finally:
            self._execution.lose()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        poll_seconds = FIRST_POLL_SECONDS
        while self._execution.ending is None:
            await asyncio.sleep(poll_seconds)
            try:
                snapshot = await self._store.read(self._digest, self._num_chunks)
            except StoreUnavailableError:
                if loop.time() - answered_at > STORE_PATIENCE_SECONDS:
                    self._execution.fail(store_unavailable())
                continue
            answered_at = loop.time()
            is_new = self._take(snapshot)
            poll_seconds = (
                FIRST_POLL_SECONDS if is_new else min(2 * poll_seconds, LONGEST_POLL_SECONDS)
            )

    def _take(self, snapshot: Snapshot | None) -> bool:
        """Whether there was something new."""
        if snapshot is None or snapshot.record.token != self._token:
            self._execution.lose()
            return False
        record = snapshot.record
        if record.state in _ENDED:
            _end(self._execution, snapshot, list(snapshot.chunks), self._sealer)
            return True
        if record.head is not None and is_stream(record.head) and snapshot.chunks:
            try:
                pieces = [self._sealer.unseal(self._digest, c) for c in snapshot.chunks]
            except SealError as error:
                self._execution.fail(_unreadable(error))
                return False
            if self._execution.head is None:
                self._execution.start(record.head)
            for piece in pieces:
                self._execution.append(piece)
            self._num_chunks += len(pieces)
            return True
        if not record.is_lease_alive and self._allows_takeover():
            self._execution.lose()
        return False


def _end(execution: Execution, snapshot: Snapshot, chunks: list[bytes], sealer: Sealer) -> None:
    record = snapshot.record
    if record.head is None:
        # Settled without an answer: nobody ever saw one.
        error = failure_error(record.state, record.cause, "")
        execution.complete(record.state, error_answer(error))
        return
    if not record.head.is_body_kept:
        execution.fail(
            GatewayError(
                409,
                "result_not_kept",
                f"This request has ended ({record.state}, status {record.head.status}); its answer "
                "was not kept (--bodies-at-rest off).",
            )
        )
        return
    try:
        pieces = [sealer.unseal(record.digest, chunk) for chunk in chunks]
    except SealError as error:
        execution.fail(_unreadable(error))
        return
    if execution.head is None:
        execution.head = record.head
    for piece in pieces:
        if piece:
            execution.append(piece)
    if execution.ending is not Ending.LOST:
        execution.complete(record.state)


def _unreadable(error: SealError) -> GatewayError:
    return GatewayError(503, "result_unreadable", f"The recorded answer cannot be given: {error}")
