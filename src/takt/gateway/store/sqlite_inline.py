"""Runs small scripts on the event loop's own thread, where nobody else is writing.

A commit that does not wait for the disk takes about as long as handing it to a thread and back.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from takt.gateway.store.sqlite_schema import connect
from takt.gateway.store.sqlite_thread import Script, as_store_error, run_in_transaction

MAX_INLINE_BYTES = 65_536
"""Larger answers are written by the thread: the loop has others to serve."""


class _Busy:
    """Somebody else is writing; the script did not run."""


BUSY: Final = _Busy()


class InlineConnection:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect(path)
        # Not here: both would hold up the event loop.
        self._connection.execute("PRAGMA busy_timeout=0")
        self._connection.execute("PRAGMA wal_autocheckpoint=0")

    def run(self, script: Script) -> Any:
        """The script's result, committed; or `BUSY`. Raises `StoreUnavailableError`."""
        return self.run_alone(lambda db: run_in_transaction(db, [script], writes=True)[0])

    def run_alone(self, statement: Script) -> Any:
        """As `run`, of a script that is a single statement, whose rows it takes all."""
        try:
            return statement(self._connection)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return BUSY
            raise as_store_error(error, self._path) from error
        except sqlite3.Error as error:
            raise as_store_error(error, self._path) from error

    def close(self) -> None:
        self._connection.close()
