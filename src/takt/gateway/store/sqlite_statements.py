"""What most requests come to on SQLite: two statements, which need no transaction around them.

Both are asked first, inside the scripts too; where they say no, the scripts look closer.
"""

from __future__ import annotations

import sqlite3

import msgspec

from takt.gateway.states import Claimed, Finish, Identity, Terms
from takt.gateway.store.base import Held
from takt.gateway.store.history import encode_head

NS_PER_MS = 1_000_000

MAX_BODY_BYTES = 65_536
"""Of an answer that is kept in its record: longer ones are chunks of their own."""


class Now(msgspec.Struct, frozen=True):
    """Monotonic time for leases, with the boot it belongs to; wall-clock time for the rest."""

    lease_ns: int
    boot_id: str
    wall_ms: int


def claim_new(db: sqlite3.Connection, now: Now, identity: Identity, terms: Terms) -> Claimed | None:
    """Claims a key that nobody used before; None if there is a record, which stays as it is. The
    token is the record's number.

    A conflict that does nothing would still count the sequence on, and so write: an answer that is
    recorded must be found on a full disk too.
    """
    is_sent = terms.upstream != ""
    rows = db.execute(
        "INSERT INTO records SELECT "
        "NULL,?,?,?,?,?,?,'processing',seq+1,?,?,?,?,?,?,?,?,0,0,'',?,?,?,x'',x'',NULL "
        "FROM sqlite_sequence WHERE name = 'records' "
        "AND NOT EXISTS (SELECT 1 FROM records WHERE digest = ?) RETURNING token",
        (
            identity.digest,
            identity.fingerprint,
            identity.key,
            identity.tenant,
            identity.service,
            identity.operation,
            terms.claim_id,
            terms.owner,
            now.lease_ns + terms.lease_ms * NS_PER_MS,
            now.boot_id,
            is_sent,
            terms.upstream,
            terms.deduplicates,
            is_sent,
            now.wall_ms,
            now.wall_ms,
            now.wall_ms + terms.ttl_ms,
            identity.digest,
        ),
    ).fetchall()
    return Claimed(int(rows[0][0]), int(is_sent), False, False, "") if rows else None


def is_short(end: Finish) -> bool:
    """Whether `finish_short` may end it: with an answer of one short chunk, and nothing beside."""
    return (
        end.first_chunk == 0
        and len(end.chunks) == 1
        and len(end.chunks[0]) <= MAX_BODY_BYTES
        and end.attempt is None
        and end.request is None
    )


def finish_short(db: sqlite3.Connection, now: Now, held: Held, end: Finish) -> bool:
    """Ends a claim whose answer has no chunks yet; False if it is not held, or has some, or is the
    replay of a letter, whose stored request goes with it."""
    return (
        db.execute(
            "UPDATE records SET state = ?, in_flight = 0, head = ?, body = ?, num_chunks = 1, "
            "cause = ?, updated_ms = ?, expires_ms = ? WHERE digest = ? AND token = ? "
            "AND state = 'processing' AND num_chunks = 0 "
            "AND NOT EXISTS (SELECT 1 FROM requests WHERE requests.digest = records.digest)",
            (
                end.state,
                encode_head(end.head),
                end.chunks[0],
                end.cause,
                now.wall_ms,
                now.wall_ms + end.ttl_ms,
                held.digest,
                held.token,
            ),
        ).rowcount
        == 1
    )
