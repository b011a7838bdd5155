"""The tables of the SQLite store, and how a connection is set up."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from takt.errors import ConfigError

APPLICATION_ID = 0x54414B54
SCHEMA_VERSION = 3

BUSY_TIMEOUT_SECONDS = 5.0

# Records and chunks are in the order in which they were made: the pages that a request changes are
# those that the one before it changed, but for one of the index of digests. Fencing tokens are
# drawn from the sequence of the records' own numbers. An answer that is one short chunk is its
# record's body: to end such a request is one statement, and changes one page less.
_TABLES = """
CREATE TABLE records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,
    fingerprint TEXT NOT NULL,
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    service TEXT NOT NULL,
    operation TEXT NOT NULL,
    state TEXT NOT NULL,
    token INTEGER NOT NULL,
    claim_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    lease_until_ns INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    in_flight INTEGER NOT NULL,
    upstream TEXT NOT NULL,
    deduplicates INTEGER NOT NULL,
    num_attempts INTEGER NOT NULL,
    num_unknown INTEGER NOT NULL,
    num_chunks INTEGER NOT NULL,
    cause TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    head BLOB NOT NULL,
    history BLOB NOT NULL,
    body BLOB
);
CREATE INDEX records_expiry ON records (expires_ms);
CREATE INDEX records_dead ON records (updated_ms) WHERE state = 'dead';
CREATE TABLE chunks (
    record INTEGER NOT NULL,
    position INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (record, position)
) WITHOUT ROWID;
CREATE TABLE requests (digest TEXT PRIMARY KEY, data BLOB NOT NULL);
INSERT INTO sqlite_sequence VALUES ('records', 0);
"""


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the store's file, which is made if absent and readable by its owner only.

    Raises `ConfigError` for a file that is not ours or cannot be written.
    """
    try:
        _create(path)
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"the store {path} cannot be opened: {error}") from None
    try:
        _set_up(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise ConfigError(f"the store {path} cannot be used: {error}") from None
    except ConfigError:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Makes the file, which is then nobody else's to read.

    A file that is there must not even be opened: closing it would drop the locks that this
    process's connections hold on it, and another process would take the log for its own.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    os.close(descriptor)


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise ConfigError(f"the store {path} lies where SQLite's write-ahead log cannot be used")
    # Whole after a loss of power, but perhaps without the last commits: `LogSync` sees to those.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == 0 and num_tables == 0:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    elif application_id != APPLICATION_ID:
        raise ConfigError(f"{path} is a database of another program; choose another file")
    elif version != SCHEMA_VERSION:
        raise ConfigError(
            f"the store {path} has version {version} of the tables; this program knows "
            f"{SCHEMA_VERSION}"
        )
    connection.execute("COMMIT")
