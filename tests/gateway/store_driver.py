"""A store with time that the test moves, called without `await`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis_process import RedisProcess

from takt.clock import ManualClock
from takt.gateway.states import Claim, Finish, Head, Identity, OnUnknown, State, Terms
from takt.gateway.store.base import Held, Snapshot, Store
from takt.gateway.store.redis import RedisStore
from takt.gateway.store.sqlite import SqliteStore
from takt.gateway.wall_clock import ManualWallClock

LEASE_MS = 1_000
TTL_MS = 3_600_000
OK = Head(200, [("content-type", "application/json")])

T = TypeVar("T")

_claim_ids = itertools.count()


def identity(digest: str = "d", fingerprint: str = "f") -> Identity:
    return Identity(
        digest=digest, fingerprint=fingerprint, key="k", tenant="t", service="s", operation="POST /"
    )


def terms(**changes: Any) -> Terms:
    values: dict[str, Any] = {
        "claim_id": f"c{next(_claim_ids)}",
        "owner": "gateway",
        "lease_ms": LEASE_MS,
        "ttl_ms": TTL_MS,
        "failed_ttl_ms": TTL_MS,
        "upstream": "http://u",
        "deduplicates": False,
        "on_unknown": OnUnknown.RETRY,
    }
    return Terms(**(values | changes))


def success(*chunks: bytes, **changes: Any) -> Finish:
    values: dict[str, Any] = {"state": State.SUCCEEDED, "ttl_ms": TTL_MS, "head": OK}
    return Finish(**(values | changes), chunks=chunks)


class StoreDriver:
    def __init__(
        self,
        runner: asyncio.Runner,
        store: Store,
        advance: Callable[[int], None],
        reopen: Callable[[], Store],
    ) -> None:
        self.store = store
        self.advance = advance
        self._runner = runner
        self._reopen = reopen
        self.run(store.open())

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def claim(self, *, digest: str = "d", fingerprint: str = "f", **changes: Any) -> Claim:
        return self.run(self.store.claim(identity(digest, fingerprint), terms(**changes)))

    def read(self, digest: str = "d") -> Snapshot | None:
        return self.run(self.store.read(digest, 0))

    def state(self, digest: str = "d") -> State:
        snapshot = self.read(digest)
        return State.ABSENT if snapshot is None else snapshot.record.state

    def finish(self, token: int, finish: Finish, digest: str = "d") -> bool:
        return self.run(self.store.finish(Held(digest, token), finish))

    def reopen(self) -> None:
        """As after the death of the process: a new store on the same data."""
        self.run(self.store.close())
        self.store = self._reopen()
        self.run(self.store.open())

    def close(self) -> None:
        self.run(self.store.close())


def make_driver(
    kind: str, runner: asyncio.Runner, directory: Path, process: RedisProcess
) -> StoreDriver:
    if kind == "redis":
        with redis.Redis.from_url(process.url) as client:
            client.flushall()
        wall = ManualWallClock(1_000_000)
        return StoreDriver(
            runner,
            RedisStore(process.url, now_ms=wall.now_ms),
            wall.advance,
            lambda: RedisStore(process.url, now_ms=wall.now_ms),
        )
    clock, wall = ManualClock(1), ManualWallClock(1_000_000)

    def advance(delta_ms: int) -> None:
        clock.advance(delta_ms * 1_000_000)
        wall.advance(delta_ms)

    def make() -> Store:
        return SqliteStore(directory / "store.db", clock=clock, wall_clock=wall)

    return StoreDriver(runner, make(), advance, make)
