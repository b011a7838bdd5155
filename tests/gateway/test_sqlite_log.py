"""The SQLite store's write-ahead log: who makes it grow, and when it begins anew."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from store_driver import identity, success, terms

from takt.gateway.states import Claim, Claimed, Mismatch, Running, Settled, State
from takt.gateway.store import sqlite_thread
from takt.gateway.store.base import Held
from takt.gateway.store.sqlite import SqliteStore


@pytest.fixture
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a store that copies its log when a test says so."""
    monkeypatch.setattr(sqlite_thread, "CHECKPOINT_SECONDS", 1000.0)
    return tmp_path / "store.db"


def open_store(path: Path) -> SqliteStore:
    return SqliteStore(path, sync=lambda descriptor: None)


async def record(store: SqliteStore, digest: str) -> None:
    claim = await store.claim(identity(digest), terms())
    assert isinstance(claim, Claimed)
    assert await store.finish(Held(digest, claim.token), success(b"x"))


@pytest.mark.parametrize("is_queued", [False, True], ids=["inline", "queued"])
def test_to_find_a_known_key_writes_nothing(store_path: Path, is_queued: bool) -> None:
    """A full disk must not keep back an answer that is recorded."""

    def written() -> tuple[bytes, bytes]:
        return store_path.read_bytes(), store_path.with_name("store.db-wal").read_bytes()

    async def scenario() -> None:
        store = open_store(store_path)
        await store.open()
        await record(store, "settled")
        running = await store.claim(identity("running"), terms())
        assert isinstance(running, Claimed)
        store._parts.sync.is_syncing = is_queued  # nothing is written inline beside a sync
        before = written()
        for digest, fingerprint, found in (
            ("settled", "f", Settled(State.SUCCEEDED)),
            ("settled", "other", Mismatch()),
            ("running", "f", Running(running.token)),
        ):
            claim: Claim = await store.claim(identity(digest, fingerprint), terms())
            assert claim == found
        assert written() == before
        store._parts.sync.is_syncing = False
        later = await store.claim(identity("new"), terms())
        assert isinstance(later, Claimed) and later.token == running.token + 1
        await store.close()

    asyncio.run(scenario())


def test_a_backup_keeps_no_writer_waiting(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that reads when the log is copied, nor one that begins in the midst of it."""
    monkeypatch.setattr(sqlite_thread, "MIN_LOG_PAGES", 1)

    async def scenario() -> None:
        store = open_store(store_path)
        await store.open()
        thread = store._parts.thread
        backup = sqlite3.connect(store_path, isolation_level=None)
        calls: list[str] = []

        def read() -> None:
            backup.execute("BEGIN")
            backup.execute("SELECT * FROM records").fetchall()

        await record(store, "first")
        read()
        await record(store, "second")
        thread._checkpoints.set_trace_callback(calls.append)
        thread._copy_log()
        assert calls == ["PRAGMA wal_checkpoint(PASSIVE)"], "the other would wait for the backup"
        backup.execute("COMMIT")

        writer = sqlite3.connect(store_path, isolation_level=None, timeout=0)
        change = "UPDATE records SET num_unknown = num_unknown + 1"

        def begin_in_the_midst(call: str) -> None:
            calls.append(call)
            if "FULL" in call:
                read()
                writer.execute(change)

        calls.clear()
        thread._checkpoints.set_trace_callback(begin_in_the_midst)
        thread._copy_log()
        assert calls == ["PRAGMA wal_checkpoint(PASSIVE)", "PRAGMA wal_checkpoint(FULL)"]
        thread._checkpoints.set_trace_callback(None)
        (hold_ms,) = thread._checkpoints.execute("PRAGMA busy_timeout").fetchone()
        assert hold_ms <= 10
        is_busy, *_ = thread._execute_checkpoint("FULL")
        assert is_busy and backup.in_transaction, "it went without what the backup still reads"
        writer.execute(change)
        await record(store, "third")
        backup.execute("COMMIT")
        is_busy, num_pages, num_copied = thread._execute_checkpoint("FULL")
        assert not is_busy and num_pages == num_copied
        backup.close()
        writer.close()
        await store.close()

    asyncio.run(scenario())


def test_a_short_log_is_copied_beside_its_writers_only(store_path: Path) -> None:
    async def scenario() -> None:
        store = open_store(store_path)
        await store.open()
        calls: list[str] = []
        await record(store, "only")
        store._parts.thread._checkpoints.set_trace_callback(calls.append)
        store._parts.thread._copy_log()
        assert calls == ["PRAGMA wal_checkpoint(PASSIVE)"]
        await store.close()

    asyncio.run(scenario())


def test_the_log_begins_anew_while_writers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_thread, "CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(sqlite_thread, "MIN_LOG_PAGES", 0)
    path = tmp_path / "store.db"

    def salt() -> bytes:
        """Another for each log."""
        with path.with_name("store.db-wal").open("rb") as log:
            return log.read(24)[16:]

    async def scenario() -> None:
        store = SqliteStore(path, sync=lambda descriptor: None)
        await store.open()
        salts = set()
        for number in range(2000):
            claim = await store.claim(identity(str(number)), terms())
            assert isinstance(claim, Claimed)
            assert await store.finish(Held(str(number), claim.token), success(b"x"))
            salts.add(salt())
            if len(salts) == 4:
                break
        assert len(salts) == 4
        snapshot = await store.read("0", 0)
        assert snapshot is not None and snapshot.chunks == (b"x",)
        await store.close()

    asyncio.run(scenario())
