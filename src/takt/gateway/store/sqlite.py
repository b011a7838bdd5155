"""The embedded store: one SQLite file, for gateways on one host."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from takt.clock import Clock, MonotonicClock
from takt.gateway.states import Attempt, Claim, Claimed, Finish, Head, Identity, Record, Terms
from takt.gateway.store import sqlite_scripts as scripts
from takt.gateway.store.base import Held, Snapshot, StoreUnavailableError
from takt.gateway.store.sqlite_thread import SqliteThread
from takt.gateway.wall_clock import SystemWallClock, WallClock, boot_id


class SqliteStore:
    """Implements `Store`. Leases run on the host's monotonic clock, which its processes share."""

    def __init__(
        self, path: Path, *, clock: Clock | None = None, wall_clock: WallClock | None = None
    ) -> None:
        self._path = path
        self._clock = clock or MonotonicClock()
        self._wall_clock = wall_clock or SystemWallClock()
        self._boot_id = boot_id()
        self._thread: SqliteThread | None = None

    async def open(self) -> None:
        self._thread = SqliteThread(self._path)

    async def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def ping(self) -> None:
        await self._run(lambda db: db.execute("SELECT token FROM fence").fetchone(), writes=False)

    async def claim(self, identity: Identity, terms: Terms) -> Claim:
        result: Claim = await self._run(lambda db: scripts.claim(db, self._now(), identity, terms))
        return result

    async def heartbeat(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        result: list[bool] = await self._run(
            lambda db: scripts.heartbeat(db, self._now(), held, lease_ms)
        )
        return result

    async def begin_attempt(self, held: Held, upstream: str, deduplicates: bool) -> bool:
        return bool(
            await self._run(
                lambda db: scripts.begin_attempt(db, self._now(), held, upstream, deduplicates)
            )
        )

    async def end_attempt(self, held: Held, attempt: Attempt) -> bool:
        return bool(await self._run(lambda db: scripts.end_attempt(db, self._now(), held, attempt)))

    async def append(
        self, held: Held, head: Head, first_chunk: int, chunks: Sequence[bytes]
    ) -> bool:
        return bool(
            await self._run(
                lambda db: scripts.append(db, self._now(), held, head, first_chunk, chunks)
            )
        )

    async def finish(self, held: Held, finish: Finish) -> bool:
        return bool(await self._run(lambda db: scripts.finish(db, self._now(), held, finish)))

    async def read(self, digest: str, first_chunk: int | None = None) -> Snapshot | None:
        result: Snapshot | None = await self._run(
            lambda db: scripts.read(db, self._now(), digest, first_chunk), writes=False
        )
        return result

    async def request_of(self, digest: str) -> bytes | None:
        result: bytes | None = await self._run(
            lambda db: scripts.request_of(db, digest), writes=False
        )
        return result

    async def dead_letters(self, limit: int, service: str | None = None) -> list[Record]:
        result: list[Record] = await self._run(
            lambda db: scripts.dead_letters(db, self._now(), limit, service), writes=False
        )
        return result

    async def revive(self, digest: str, terms: Terms) -> Claimed | None:
        result: Claimed | None = await self._run(
            lambda db: scripts.revive(db, self._now(), digest, terms)
        )
        return result

    async def purge(self, digests: Sequence[str]) -> int:
        return int(await self._run(lambda db: scripts.purge(db, digests)))

    async def sweep(self, limit: int) -> int:
        return int(await self._run(lambda db: scripts.sweep(db, self._now(), limit)))

    async def num_dead(self) -> int:
        return int(await self._run(lambda db: scripts.num_dead(db, self._now()), writes=False))

    async def _run(
        self, script: Callable[[sqlite3.Connection], Any], *, writes: bool = True
    ) -> Any:
        if self._thread is None:
            raise StoreUnavailableError("the store is not open")
        return await self._thread.run(script, writes=writes)

    def _now(self) -> scripts.Now:
        """Read when the script runs: time that it waited in the queue is time that has passed."""
        return scripts.Now(self._clock.now_ns(), self._boot_id, self._wall_clock.now_ms())
