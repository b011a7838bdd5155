"""What the SQLite store has on the disk when it says so: the power may go at any moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from store_driver import OK, TTL_MS, identity, success, terms

from takt.gateway.states import Attempt, Claim, Claimed, OnUnknown, Running, Settled, State
from takt.gateway.store import sqlite_sync
from takt.gateway.store.base import Held, StoreUnavailableError
from takt.gateway.store.sqlite import SqliteStore
from takt.gateway.wall_clock import ManualWallClock

T = TypeVar("T")

SOME_TIME = 0.1


class Disk:
    """Stands in for `fdatasync`: keeps what was written when it was called last."""

    def __init__(self, path: Path) -> None:
        self.works = threading.Event()
        self.works.set()
        self.error: OSError | None = None
        self.num_syncs = 0
        self._path = path
        self._image = path.parent / "image"
        self._image.mkdir()

    def sync(self, descriptor: int) -> None:
        assert os.fstat(descriptor).st_ino == self._log(self._path).stat().st_ino
        self.works.wait()
        if self.error is not None:
            raise self.error
        shutil.copy(self._path, self._image)
        shutil.copy(self._log(self._path), self._image)
        self.num_syncs += 1

    def after_power_loss(self) -> SqliteStore:
        """A store on what a loss of power now would leave."""
        left = self._image.with_name(f"left-{self.num_syncs}")
        shutil.copytree(self._image, left)
        return SqliteStore(left / self._path.name)

    def _log(self, path: Path) -> Path:
        return path.with_name(f"{path.name}-wal")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "store.db")


def run(disk: Disk, scenario: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(scenario)
    finally:
        disk.works.set()


def open_store(disk: Disk) -> SqliteStore:
    """Its syncs are held up by tests: none of them may be on the event loop's own thread."""
    return SqliteStore(disk._path, sync=disk.sync, max_inline_sync_seconds=0)


async def state_after_power_loss(disk: Disk) -> State:
    left = disk.after_power_loss()
    await left.open()
    snapshot = await left.read("d")
    await left.close()
    return State.ABSENT if snapshot is None else snapshot.record.state


async def is_waiting(call: asyncio.Task[Any]) -> bool:
    await asyncio.sleep(SOME_TIME)
    return not call.done()


@pytest.mark.parametrize(
    "changes", [{"on_unknown": OnUnknown.FAIL}, {"deduplicates": True}], ids=["fail", "dedup"]
)
def test_claim_is_on_the_disk_before_a_request_that_must_not_be_sent_twice(
    disk: Disk, changes: dict[str, Any]
) -> None:
    async def scenario() -> None:
        store = open_store(disk)
        await store.open()
        disk.works.clear()
        claim = asyncio.create_task(store.claim(identity(), terms(**changes)))
        assert await is_waiting(claim)
        disk.works.set()
        assert isinstance(await claim, Claimed)
        assert await state_after_power_loss(disk) is State.PROCESSING
        await store.close()

    run(disk, scenario())


def test_claim_that_may_be_lost_does_not_wait_and_is_on_the_disk_soon(disk: Disk) -> None:
    async def scenario() -> None:
        store = open_store(disk)
        await store.open()
        disk.works.clear()
        assert isinstance(await store.claim(identity(), terms()), Claimed)
        disk.works.set()
        while not disk.num_syncs:
            await asyncio.sleep(0.01)
        assert await state_after_power_loss(disk) is State.PROCESSING
        await store.close()

    run(disk, scenario())


def test_attempt_is_on_the_disk_before_it_is_sent_again(disk: Disk) -> None:
    async def scenario() -> None:
        store = open_store(disk)
        await store.open()
        claim = await store.claim(identity(), terms(upstream=""))
        assert isinstance(claim, Claimed)
        disk.works.clear()
        call = asyncio.create_task(store.begin_attempt(Held("d", claim.token), "http://u", False))
        assert await is_waiting(call)
        disk.works.set()
        assert await call
        left = disk.after_power_loss()
        await left.open()
        snapshot = await left.read("d")
        assert snapshot is not None
        assert (snapshot.record.in_flight, snapshot.record.upstream) == (True, "http://u")
        await left.close()
        await store.close()

    run(disk, scenario())


@pytest.mark.parametrize("num_bytes", [1, 200_000], ids=["inline", "queued"])
def test_answer_is_on_the_disk_before_anybody_gets_it(disk: Disk, num_bytes: int) -> None:
    """Neither its own gateway gives it sooner, nor another that reads the store."""

    async def scenario() -> None:
        store, other = open_store(disk), open_store(disk)
        await store.open()
        await other.open()
        claim = await store.claim(identity(), terms())
        assert isinstance(claim, Claimed)
        disk.works.clear()
        end = success(bytes(num_bytes))
        finish = asyncio.create_task(store.finish(Held("d", claim.token), end))
        assert await is_waiting(finish)
        assert await other.claim(identity(), terms()) == Settled(State.SUCCEEDED)
        read = asyncio.create_task(other.read("d", 0))
        assert await is_waiting(read)
        disk.works.set()
        assert await finish
        snapshot = await read
        assert snapshot is not None and snapshot.chunks == (bytes(num_bytes),)
        assert await state_after_power_loss(disk) is State.SUCCEEDED
        await other.close()
        await store.close()

    run(disk, scenario())


def test_all_who_wait_share_a_call(disk: Disk) -> None:
    async def scenario() -> None:
        store = open_store(disk)
        await store.open()
        disk.works.clear()
        calls = [
            asyncio.create_task(
                store.claim(identity(f"d{number}"), terms(on_unknown=OnUnknown.FAIL))
            )
            for number in range(50)
        ]
        # One of them began the call that the disk holds up.
        while len(store._parts.sync._waiting) < len(calls) - 1:
            await asyncio.sleep(0.01)
        disk.works.set()
        await asyncio.gather(*calls)
        assert disk.num_syncs == 2
        await store.close()

    run(disk, scenario())


def test_disk_that_failed_once_is_not_believed_again(disk: Disk) -> None:
    async def scenario() -> None:
        store = open_store(disk)
        await store.open()
        claim = await store.claim(identity(), terms())
        assert isinstance(claim, Claimed)
        disk.error = OSError(5, "Input/output error")
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            await store.finish(Held("d", claim.token), success(b"x"))
        disk.error = None
        for call in (
            store.finish(Held("d", claim.token), success(b"x")),
            store.claim(identity("e"), terms()),
            store.ping(),
        ):
            with pytest.raises(StoreUnavailableError, match="started again"):
                await call
        await store.close()

    run(disk, scenario())


def test_scripts_go_on_while_another_process_writes(disk: Disk) -> None:
    """A writer that holds the lock holds up claims, not the event loop."""
    import sqlite3

    async def scenario() -> None:
        store = open_store(disk)
        await store.open()
        other = sqlite3.connect(disk._path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        claim = asyncio.create_task(store.claim(identity(), terms()))
        assert await is_waiting(claim)
        other.execute("COMMIT")
        other.close()
        assert isinstance(await claim, Claimed)
        await store.close()

    run(disk, scenario())


def test_a_lone_request_on_a_quick_disk_is_synced_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handing it to a thread takes longer; with others in flight nobody must be held up."""
    monkeypatch.setattr(sqlite_sync, "SOON_SECONDS", 1000.0)  # nobody waits for those
    threads: list[str] = []

    def sync(descriptor: int) -> None:
        threads.append(threading.current_thread().name)

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", sync=sync, max_inline_sync_seconds=60)
        await store.open()
        for digest in ("first", "alone"):
            claim = await store.claim(identity(digest), terms())
            assert isinstance(claim, Claimed)
            await store.finish(Held(digest, claim.token), success(b"x"))
        claims = {name: await store.claim(identity(name), terms()) for name in ("one", "two")}
        for name, claim in claims.items():
            assert isinstance(claim, Claimed)
            await store.finish(Held(name, claim.token), success(b"x"))
        await store.close()

    asyncio.run(scenario())
    elsewhere = "takt-gateway-sync"
    here = threading.current_thread().name
    assert threads == [elsewhere, here, elsewhere, here], "the first tells how quick the disk is"


def test_claims_that_are_lost_or_given_up_are_not_in_flight(disk: Disk) -> None:
    """Each would keep lone requests from being synced where they stand, for ever."""

    async def scenario() -> None:
        store = open_store(disk)
        await store.open()

        async def claim(digest: str, **changes: Any) -> Held:
            claimed = await store.claim(identity(digest), terms(**changes))
            assert isinstance(claimed, Claimed)
            return Held(digest, claimed.token)

        async def give_up(call: Coroutine[Any, Any, Any]) -> None:
            disk.works.clear()
            task = asyncio.create_task(call)
            assert await is_waiting(task)
            task.cancel()
            disk.works.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        for number, lost_by in enumerate(
            (
                lambda held: store.begin_attempt(held, "http://u", False),
                lambda held: store.end_attempt(held, Attempt(1, "http://u", "error", 1)),
                lambda held: store.append(held, OK, 0, [b"x"]),
                lambda held: store.finish(held, success(b"x")),
            )
        ):
            held = await claim(f"lost-{number}", lease_ms=1)
            await asyncio.sleep(0.01)
            other = open_store(disk)
            await other.open()
            assert isinstance(await other.claim(identity(held.digest), terms()), Claimed)
            await other.close()
            assert store._held
            assert not await lost_by(held)
            assert not store._held
        await give_up(store.finish(await claim("finish"), success(b"x")))
        await give_up(store.begin_attempt(await claim("attempt"), "http://u", False))
        await give_up(claim("claim", on_unknown=OnUnknown.FAIL))
        assert not store._held
        await store.close()

    run(disk, scenario())


def test_a_sync_that_fails_where_it_stands_fails_the_store(tmp_path: Path) -> None:
    num_syncs = 0

    def sync(descriptor: int) -> None:
        nonlocal num_syncs
        num_syncs += 1
        if num_syncs > 1:
            raise OSError(5, "Input/output error")

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", sync=sync, max_inline_sync_seconds=60)
        await store.open()
        for digest in ("first", "second"):
            claim = await store.claim(identity(digest), terms())
            assert isinstance(claim, Claimed)
            held = Held(digest, claim.token)
            if digest == "first":
                await store.finish(held, success(b"x"))
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            await store.finish(held, success(b"x"))
        with pytest.raises(StoreUnavailableError):
            await store.claim(identity("third"), terms())
        await store.close()

    asyncio.run(scenario())


def test_a_clock_that_is_set_ends_no_lease(runner: asyncio.Runner, tmp_path: Path) -> None:
    wall = ManualWallClock(1_000_000)
    store = SqliteStore(tmp_path / "s.db", wall_clock=wall)
    runner.run(store.open())
    held = claimed(runner.run(store.claim(identity(), terms(lease_ms=60_000))))
    wall.advance(100 * TTL_MS)
    assert runner.run(store.sweep(10)) == 0
    assert isinstance(runner.run(store.claim(identity(), terms())), Running)
    assert runner.run(store.finish(held, success(b"late")))
    runner.run(store.close())


@pytest.mark.parametrize("lost", ["s.db", "s.db-wal"])
def test_a_file_that_is_deleted_is_noticed(
    runner: asyncio.Runner, tmp_path: Path, lost: str
) -> None:
    store = SqliteStore(tmp_path / "s.db")
    runner.run(store.open())
    claimed(runner.run(store.claim(identity(), terms())))
    (tmp_path / lost).unlink()
    for call in (lambda: store.claim(identity("e"), terms()), store.ping):
        with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
            runner.run(call())
    runner.run(store.close())


def claimed(claim: Claim) -> Held:
    assert isinstance(claim, Claimed)
    return Held("d", claim.token)
