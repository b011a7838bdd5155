"""Puts the write-ahead log on the disk, apart from the transactions that wrote it.

With `synchronous=FULL` SQLite waits for the disk inside each commit and holds the lock of writers
meanwhile, whatever was written. Here commits are on the disk when somebody needs them to be: one
thread syncs, and all who wait when it begins share its call.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from takt.errors import ConfigError
from takt.gateway.store.base import StoreUnavailableError

Sync = Callable[[int], None]

MAX_INLINE_SECONDS = 0.001
"""Of the last sync: where it took longer, the event loop is not held up by the next one."""

SOON_SECONDS = 0.05
"""After which a commit that nobody waits for is put on the disk too."""

_Waiters = list[asyncio.Future[None]]


class LogSync:
    """Owned by the event loop that makes it; a connection to the store must be open.

    After a failed call the kernel may drop what it could not write and report success to the
    next one: from then on every call fails.
    """

    def __init__(
        self,
        path: Path,
        sync: Sync = os.fdatasync,
        max_inline_seconds: float = MAX_INLINE_SECONDS,
    ) -> None:
        """Raises `ConfigError` if the log cannot be opened."""
        self._path = path
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._failure: StoreUnavailableError | None = None
        self._waiting: _Waiters = []
        self._max_inline_seconds = max_inline_seconds
        self._last_seconds = float("inf")
        self._due: asyncio.TimerHandle | None = None
        """Runs on when a sync comes before it: a timer of each commit costs more than a look."""
        self._wanted_since: float | None = None
        """When something was committed that nobody waits for; None if a sync has begun since."""
        self.is_syncing = self._is_overdue = False
        try:
            self._descriptor = os.open(path.with_name(f"{path.name}-wal"), os.O_RDONLY)
            self._file = path.stat().st_ino
            _sync_names(path.parent)
        except OSError as error:
            raise ConfigError(f"the store {path} cannot be used: {error}") from None
        self._batches: queue.SimpleQueue[_Waiters | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="takt-gateway-sync", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises `StoreUnavailableError` if the disk has failed before."""
        if self._failure is not None:
            raise self._failure

    def check_file(self) -> None:
        """Likewise if whoever opens the path now gets another file or log."""
        self.check()
        try:
            is_same = self._path.stat().st_ino == self._file
        except OSError:
            is_same = False
        if not is_same or os.fstat(self._descriptor).st_nlink == 0:
            self._failure = StoreUnavailableError(
                f"the store {self._path} was deleted or replaced: start the gateway again"
            )
            raise self._failure

    async def wait(self) -> None:
        """Returns once all that was committed before is on the disk.

        Raises `StoreUnavailableError` if that is not possible.
        """
        self.check()
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        self._begin()
        await waiter

    def sync_inline(self) -> bool:
        """Puts all that was committed on the disk, here and now; False if that might take long.

        To hand it to a thread and back takes three times as long as a quick disk does. Raises
        `StoreUnavailableError` if it is not possible.
        """
        self.check()
        if self.is_syncing or self._last_seconds > self._max_inline_seconds:
            return False
        self._wanted_since, self._is_overdue = None, False
        error = self._timed_sync()
        if error is not None or self._waiting:
            self._end([], error)
            self.check()
        return True

    def soon(self) -> None:
        """What was committed before will be on the disk within about `SOON_SECONDS`."""
        if self._wanted_since is None:
            self._wanted_since = self._loop.time()
        if self._due is None:
            self._due = self._loop.call_later(SOON_SECONDS, self._on_due)

    def close(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._batches.put(None)
        self._thread.join()
        os.close(self._descriptor)

    def _on_due(self) -> None:
        self._due = None
        if self._wanted_since is None:
            return
        left = self._wanted_since + SOON_SECONDS - self._loop.time()
        if left > 0:
            self._due = self._loop.call_later(left, self._on_due)
        else:
            self._is_overdue = True
            self._begin()

    def _begin(self) -> None:
        """Begins a call unless one runs: that may have begun too early, so another follows it."""
        if self.is_syncing:
            return
        self.is_syncing = True
        self._wanted_since, self._is_overdue = None, False
        batch, self._waiting = self._waiting, []
        self._batches.put(batch)

    def _timed_sync(self) -> OSError | None:
        begin_ns = time.monotonic_ns()
        try:
            self._sync(self._descriptor)
        except OSError as error:
            return error
        self._last_seconds = (time.monotonic_ns() - begin_ns) / 1e9
        return None

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._loop.call_soon_threadsafe(self._end, batch, self._timed_sync())

    def _end(self, batch: _Waiters, error: OSError | None) -> None:
        self.is_syncing = False
        if error is not None:
            self._failure = StoreUnavailableError(
                f"the store {self._path} could not be put on the disk: {error.strerror or error}; "
                "nothing is recorded any more until the gateway is started again"
            )
            batch, self._waiting = [*batch, *self._waiting], []
        for waiter in batch:
            if waiter.done():
                continue
            if self._failure is not None:
                waiter.set_exception(self._failure)
            else:
                waiter.set_result(None)
        if self._failure is None and (self._waiting or self._is_overdue):
            self._begin()


def _sync_names(directory: Path) -> None:
    """A file whose name is not on the disk is lost with all that is in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
