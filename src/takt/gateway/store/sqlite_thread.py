"""One thread that runs scripts on a SQLite file, many to a transaction, and one that checkpoints.

Whatever has queued up while a transaction runs shares the next one.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takt.gateway.store.base import StoreUnavailableError
from takt.gateway.store.sqlite_schema import connect

Script = Callable[[sqlite3.Connection], Any]

MAX_SCRIPTS_PER_COMMIT = 256

CHECKPOINT_SECONDS = 4.0
"""A checkpoint keeps the disk busy for some milliseconds, which answers that are being recorded
then wait for. What is written meanwhile is left over; writers are held up for the moment that this
takes, since the log begins anew, in its old place, only once nothing is: a sync of a log that grows
takes half as long again, for it must record the new length too."""

MIN_LOG_PAGES = 1_000
"""Writers are not held up to end a log that is shorter."""

MAX_HOLD_MS = 5
"""Who holds up writers waits no longer for a reader of what the database held before."""


@dataclass(frozen=True, slots=True)
class _Job:
    script: Script
    writes: bool
    future: asyncio.Future[Any]


class SqliteThread:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect(path)
        self._connection.execute("PRAGMA wal_autocheckpoint=0")
        self._checkpoints = connect(path)
        self._checkpoints.execute(f"PRAGMA busy_timeout={MAX_HOLD_MS}")
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name="takt-gateway-store", daemon=True),
            threading.Thread(target=self._checkpoint, name="takt-gateway-checkpoint", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, script: Script, *, writes: bool = True) -> Any:
        """The script's result, committed. Raises `StoreUnavailableError`."""
        if self._stop.is_set():
            raise StoreUnavailableError("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.put(_Job(script, writes, future))
        return await future

    def close(self) -> None:
        """Waits for the scripts that were given."""
        self._stop.set()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._connection.close()
        self._checkpoints.close()

    def _work(self) -> None:
        is_open = True
        while is_open:
            jobs = [self._jobs.get()]
            while len(jobs) < MAX_SCRIPTS_PER_COMMIT and not self._jobs.empty():
                jobs.append(self._jobs.get_nowait())
            is_open = None not in jobs
            batch = [job for job in jobs if job is not None]
            if batch:
                self._loop.call_soon_threadsafe(_deliver, self._run_batch(batch))

    def _run_batch(self, batch: list[_Job]) -> list[tuple[_Job, Any]]:
        try:
            return list(zip(batch, self._run_in_one(batch), strict=True))
        except Exception as error:
            if len(batch) == 1:
                return [(batch[0], as_store_error(error, self._path))]
        # One of them failed and took the others' work with it: each gets a transaction of its own.
        return [result for job in batch for result in self._run_batch([job])]

    def _run_in_one(self, batch: list[_Job]) -> list[Any]:
        writes = any(job.writes for job in batch)
        return run_in_transaction(self._connection, [job.script for job in batch], writes=writes)

    def _checkpoint(self) -> None:
        while not self._stop.wait(CHECKPOINT_SECONDS):
            try:
                self._copy_log()
            except sqlite3.Error:
                # Busy or full: the log only grows, and the writer reports what is wrong.
                continue

    def _copy_log(self) -> None:
        is_busy, num_pages, num_copied = self._execute_checkpoint("PASSIVE")
        # Less than all is copied where somebody reads what was there before, a backup perhaps: it
        # would keep the other call, and all writers behind it, waiting in vain.
        if not is_busy and num_copied == num_pages >= MIN_LOG_PAGES:
            self._execute_checkpoint("FULL")

    def _execute_checkpoint(self, mode: str) -> tuple[int, int, int]:
        """Whether it was held up, pages of the log, and how many of them are in the database."""
        row: tuple[int, int, int] = self._checkpoints.execute(
            f"PRAGMA wal_checkpoint({mode})"
        ).fetchone()
        return row


def run_in_transaction(
    connection: sqlite3.Connection, scripts: Sequence[Script], *, writes: bool
) -> list[Any]:
    """The scripts' results, committed together; if one of them fails, none has had an effect."""
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        results = [script(connection) for script in scripts]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return results


def as_store_error(error: Exception, path: Path) -> Exception:
    if isinstance(error, sqlite3.Error):
        return StoreUnavailableError(f"the store {path} failed: {error}")
    return error


def _deliver(results: list[tuple[_Job, Any]]) -> None:
    for job, result in results:
        if job.future.done():
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
