"""The embedded store: one SQLite file, for gateways on one host.

A commit survives the death of the process at once, and a loss of power once the log is synced. The
calls below wait for that where the rule of durability asks for it (`docs/gateway.md`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takt.clock import Clock, MonotonicClock
from takt.gateway.states import (
    Attempt,
    Claim,
    Claimed,
    Finish,
    Head,
    Identity,
    OnUnknown,
    Record,
    State,
    Terms,
)
from takt.gateway.store import sqlite_scripts as scripts
from takt.gateway.store import sqlite_statements as statements
from takt.gateway.store.base import Held, Snapshot, StoreUnavailableError
from takt.gateway.store.sqlite_inline import BUSY, MAX_INLINE_BYTES, InlineConnection
from takt.gateway.store.sqlite_sync import MAX_INLINE_SECONDS, LogSync, Sync
from takt.gateway.store.sqlite_thread import Script, SqliteThread
from takt.gateway.wall_clock import SystemWallClock, WallClock, boot_id


@dataclass(frozen=True, slots=True)
class _Open:
    thread: SqliteThread
    inline: InlineConnection
    sync: LogSync


class SqliteStore:
    """Implements `Store`. Leases run on the host's monotonic clock, which its processes share."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        wall_clock: WallClock | None = None,
        sync: Sync = os.fdatasync,
        max_inline_sync_seconds: float = MAX_INLINE_SECONDS,
    ) -> None:
        self._path = path
        self._clock = clock or MonotonicClock()
        self._wall_clock = wall_clock or SystemWallClock()
        self._sync = sync
        self._max_inline_sync_seconds = max_inline_sync_seconds
        self._held: set[Held] = set()
        """Claims that have not ended here yet, as far as is known."""
        self._boot_id = boot_id()
        self._open: _Open | None = None

    async def open(self) -> None:
        with ExitStack() as opened:
            thread = SqliteThread(self._path)
            opened.callback(thread.close)
            inline = InlineConnection(self._path)
            opened.callback(inline.close)
            log = LogSync(self._path, self._sync, self._max_inline_sync_seconds)
            self._open = _Open(thread, inline, log)
            opened.pop_all()

    async def close(self) -> None:
        if self._open is not None:
            self._open.thread.close()
            self._open.sync.close()
            self._open.inline.close()
            self._open = None

    async def ping(self, *, writes: bool = False) -> None:
        self._parts.sync.check_file()
        query = (
            "UPDATE sqlite_sequence SET seq = seq" if writes else "SELECT seq FROM sqlite_sequence"
        )
        await self._queue(lambda db: db.execute(query).fetchone(), writes=writes)

    async def claim(self, identity: Identity, terms: Terms) -> Claim:
        self._parts.sync.check_file()
        result: Claim = self._claim_new(identity, terms) or await self._write(
            lambda db: scripts.claim(db, self._now(), identity, terms)
        )
        if not isinstance(result, Claimed):
            return result
        held = Held(identity.digest, result.token)
        self._held.add(held)
        if terms.upstream and (terms.on_unknown is OnUnknown.FAIL or terms.deduplicates):
            try:
                await self._wait_for_disk()
            except BaseException:
                self._held.discard(held)
                raise
        else:
            # Where an attempt of unknown outcome is made again, one that the disk never heard of is
            # made again too: the claim may go to the disk while the upstream works.
            self._parts.sync.soon()
        return result

    async def heartbeat(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        result: list[bool] = await self._queue(
            lambda db: scripts.heartbeat(db, self._now(), held, lease_ms)
        )
        self._held.difference_update(
            one for one, is_held in zip(held, result, strict=True) if not is_held
        )
        return result

    async def begin_attempt(self, held: Held, upstream: str, deduplicates: bool) -> bool:
        return await self._as_holder(
            held,
            self._write_synced(
                lambda db: scripts.begin_attempt(db, self._now(), held, upstream, deduplicates)
            ),
        )

    async def end_attempt(self, held: Held, attempt: Attempt) -> bool:
        # Lost with the power, it leaves an attempt of unknown outcome: nothing is sent twice.
        return await self._as_holder(
            held, self._write(lambda db: scripts.end_attempt(db, self._now(), held, attempt))
        )

    async def append(
        self, held: Held, head: Head, first_chunk: int, chunks: Sequence[bytes]
    ) -> bool:
        return await self._as_holder(
            held,
            self._queue(
                lambda db: scripts.append(db, self._now(), held, head, first_chunk, chunks)
            ),
        )

    async def finish(self, held: Held, finish: Finish) -> bool:
        num_bytes = sum(map(len, finish.chunks)) + len(finish.request or b"")
        try:
            is_held: bool = self._finish_short(held, finish) or await self._write(
                lambda db: scripts.finish(db, self._now(), held, finish),
                inline=num_bytes <= MAX_INLINE_BYTES,
            )
            await self._wait_for_disk()
            return is_held
        finally:
            self._held.discard(held)

    async def read(self, digest: str, first_chunk: int | None = None) -> Snapshot | None:
        result: Snapshot | None = await self._queue(
            lambda db: scripts.read(db, self._now(), digest, first_chunk), writes=False
        )
        if result is not None and result.record.state is not State.PROCESSING:
            # Another gateway may have committed it just now, and not be done with syncing it.
            await self._parts.sync.wait()
        return result

    async def request_of(self, digest: str) -> bytes | None:
        result: bytes | None = await self._queue(
            lambda db: scripts.request_of(db, digest), writes=False
        )
        return result

    async def dead_letters(self, limit: int, service: str | None = None) -> list[Record]:
        result: list[Record] = await self._queue(
            lambda db: scripts.dead_letters(db, self._now(), limit, service)
        )
        return result

    async def revive(self, digest: str, terms: Terms) -> Claimed | None:
        # An operator waits for it, and `begin_attempt` follows: the queue will do.
        result: Claimed | None = await self._queue(
            lambda db: scripts.revive(db, self._now(), digest, terms)
        )
        return result

    async def purge(self, digests: Sequence[str]) -> int:
        num_purged = int(await self._queue(lambda db: scripts.purge(db, self._now(), digests)))
        await self._parts.sync.wait()
        return num_purged

    async def sweep(self, limit: int) -> int:
        return int(await self._queue(lambda db: scripts.sweep(db, self._now(), limit)))

    async def num_dead(self) -> int:
        return int(await self._queue(lambda db: scripts.num_dead(db, self._now()), writes=False))

    @property
    def _parts(self) -> _Open:
        if self._open is None:
            raise StoreUnavailableError("the store is not open")
        return self._open

    async def _as_holder(self, held: Held, call: Awaitable[Any]) -> bool:
        """The call's answer, by which the claim may be lost. One that fails may be its holder's
        last; if it is not, one request too few is taken to be in flight, which costs a moment."""
        is_held = False
        try:
            is_held = bool(await call)
        finally:
            if not is_held:
                self._held.discard(held)
        return is_held

    def _claim_new(self, identity: Identity, terms: Terms) -> Claimed | None:
        """None if the key has a record, or if nothing may be written here now."""
        result: Claimed | None = self._write_alone(
            lambda db: statements.claim_new(db, self._now(), identity, terms)
        )
        return result

    def _finish_short(self, held: Held, finish: Finish) -> bool:
        """False if it is not as short as that, or if nothing may be written here now."""
        return statements.is_short(finish) and bool(
            self._write_alone(lambda db: statements.finish_short(db, self._now(), held, finish))
        )

    def _write_alone(self, statement: Script) -> Any:
        """The statement's result, committed; None if nothing may be written here now."""
        parts = self._parts
        parts.sync.check()
        if parts.sync.is_syncing:
            return None
        result = parts.inline.run_alone(statement)
        return None if result is BUSY else result

    async def _write_synced(self, script: Script, *, inline: bool = True) -> Any:
        result = await self._write(script, inline=inline)
        await self._wait_for_disk()
        return result

    async def _write(self, script: Script, *, inline: bool = True) -> Any:
        """The result of a script that somebody waits for: committed, perhaps not yet synced."""
        parts = self._parts
        parts.sync.check()
        # Beside a sync the file system may hold up a write for as long as that takes, and with it
        # the event loop: of 2,000 writes beside syncs of 9 ms one in a hundred waited 16 ms.
        if not inline or parts.sync.is_syncing:
            return await parts.thread.run(script)
        result = parts.inline.run(script)
        return await parts.thread.run(script) if result is BUSY else result

    async def _wait_for_disk(self) -> None:
        """What was committed is on the disk. A lone request's wait holds up nobody else."""
        sync = self._parts.sync
        if len(self._held) > 1 or not sync.sync_inline():
            await sync.wait()

    async def _queue(self, script: Script, *, writes: bool = True) -> Any:
        """Behind what has queued up, in one transaction with it."""
        return await self._parts.thread.run(script, writes=writes)

    def _now(self) -> statements.Now:
        """Read when the script runs: time that it waited in the queue is time that has passed."""
        return statements.Now(self._clock.now_ns(), self._boot_id, self._wall_clock.now_ms())
