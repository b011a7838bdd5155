"""The store's scripts on SQLite. Each runs inside a transaction that others do not see into."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from takt.gateway.states import (
    OUTCOME_UNKNOWN,
    REPLAY_INTERRUPTED,
    SETTLED,
    Attempt,
    Claim,
    Claimed,
    Finish,
    Head,
    Identity,
    Mismatch,
    OnUnknown,
    Record,
    Running,
    Settled,
    State,
    Terms,
)
from takt.gateway.store.base import LEASES_PER_TTL, Held, Snapshot
from takt.gateway.store.history import decode_head, decode_history, encode_head, extend_history
from takt.gateway.store.sqlite_statements import NS_PER_MS, Now, claim_new, finish_short, is_short


def claim(db: sqlite3.Connection, now: Now, identity: Identity, terms: Terms) -> Claim:
    claimed = claim_new(db, now, identity, terms)
    if claimed is not None:
        return claimed
    row = _known(db, identity.digest)
    if _is_over(row, now):
        _delete(db, identity.digest)
        return claim(db, now, identity, terms)
    if row["fingerprint"] != identity.fingerprint:
        return Mismatch()
    state = State(row["state"])
    if state in SETTLED:
        return Settled(state)
    if state is State.FAILED_RETRYABLE:
        return _take(db, now, row, terms)
    if row["claim_id"] == terms.claim_id:
        return Claimed(row["token"], row["num_attempts"], False, False, "")
    if _is_lease_alive(row, now) or not terms.allow_takeover:
        return Running(row["token"])
    if _lapse(db, now, row):
        return Settled(State.DEAD)
    if row["in_flight"] and not row["deduplicates"] and terms.on_unknown is OnUnknown.FAIL:
        _settle_unknown(db, now, row["digest"], terms)
        return Settled(State.FAILED_FINAL, settled_now=True)
    return _take(db, now, row, terms)


def heartbeat(db: sqlite3.Connection, now: Now, held: Sequence[Held], lease_ms: int) -> list[bool]:
    until = now.lease_ns + lease_ms * NS_PER_MS
    return [
        db.execute(
            "UPDATE records SET lease_until_ns = ?, boot_id = ?, expires_ms = max(expires_ms, ?) "
            "WHERE digest = ? AND token = ? AND state = 'processing'",
            (until, now.boot_id, now.wall_ms + LEASES_PER_TTL * lease_ms, one.digest, one.token),
        ).rowcount
        == 1
        for one in held
    ]


def begin_attempt(
    db: sqlite3.Connection, now: Now, held: Held, upstream: str, deduplicates: bool
) -> bool:
    if _held(db, held) is None:
        return False
    # Sent again after a lost answer, it finds in_flight set and counts nothing.
    db.execute(
        "UPDATE records SET num_attempts = num_attempts + (in_flight = 0), in_flight = 1, "
        "upstream = ?, deduplicates = ?, updated_ms = ? WHERE digest = ?",
        (upstream, deduplicates, now.wall_ms, held.digest),
    )
    return True


def end_attempt(db: sqlite3.Connection, now: Now, held: Held, attempt: Attempt) -> bool:
    if _held(db, held) is None:
        return False
    history = _with_attempt(db, held.digest, attempt)
    db.execute(
        "UPDATE records SET in_flight = 0, history = ?, updated_ms = ? WHERE digest = ?",
        (history, now.wall_ms, held.digest),
    )
    return True


def append(
    db: sqlite3.Connection,
    now: Now,
    held: Held,
    head: Head,
    first_chunk: int,
    chunks: Sequence[bytes],
) -> bool:
    found = _held(db, held)
    if found is None:
        return False
    record, _ = found
    _add_chunks(db, record, first_chunk, chunks)
    db.execute(
        "UPDATE records SET head = ?, num_chunks = max(num_chunks, ?), updated_ms = ? WHERE id = ?",
        (encode_head(head), first_chunk + len(chunks), now.wall_ms, record),
    )
    return True


def finish(db: sqlite3.Connection, now: Now, held: Held, end: Finish) -> bool:
    if is_short(end) and finish_short(db, now, held, end):
        return True
    found = _held(db, held)
    if found is None:
        row = _row(db, held.digest)
        return (
            row is not None
            and not _is_over(row, now)
            and row["token"] == held.token
            and row["state"] == end.state
        )
    record, num_chunks = found
    if num_chunks and end.first_chunk == 0:
        db.execute("DELETE FROM chunks WHERE record = ?", (record,))
    _add_chunks(db, record, end.first_chunk, end.chunks)
    if end.request is not None:
        db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?)", (held.digest, end.request))
    elif end.state is not State.DEAD:
        db.execute("DELETE FROM requests WHERE digest = ?", (held.digest,))
    history = _with_attempt(db, held.digest, end.attempt) if end.attempt else None
    db.execute(
        "UPDATE records SET state = ?, in_flight = 0, head = ?, num_chunks = ?, cause = ?, "
        "history = coalesce(?, history), updated_ms = ?, expires_ms = ? WHERE id = ?",
        (
            end.state,
            encode_head(end.head),
            end.first_chunk + len(end.chunks),
            end.cause,
            history,
            now.wall_ms,
            now.wall_ms + end.ttl_ms,
            record,
        ),
    )
    return True


def read(db: sqlite3.Connection, now: Now, digest: str, first_chunk: int | None) -> Snapshot | None:
    row = _row(db, digest)
    if row is None or _is_over(row, now):
        return None
    chunks: tuple[bytes, ...] = ()
    if first_chunk is not None and row["body"] is not None:
        chunks = (bytes(row["body"]),)[first_chunk:]
    elif first_chunk is not None:
        chunks = tuple(
            bytes(data)
            for (data,) in db.execute(
                "SELECT data FROM chunks WHERE record = ? AND position >= ? ORDER BY position",
                (row["id"], first_chunk),
            )
        )
    return Snapshot(_record(row, now), chunks)


def request_of(db: sqlite3.Connection, digest: str) -> bytes | None:
    row = db.execute("SELECT data FROM requests WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else bytes(row[0])


def dead_letters(db: sqlite3.Connection, now: Now, limit: int, service: str | None) -> list[Record]:
    rows = db.cursor()
    rows.row_factory = sqlite3.Row
    rows.execute(
        "SELECT records.* FROM requests JOIN records USING (digest) WHERE state = 'processing'"
    )
    for row in rows.fetchall():
        _lapse(db, now, row)
    rows.execute(
        "SELECT * FROM records WHERE state = 'dead' AND expires_ms > ? "
        "AND (? IS NULL OR service = ?) ORDER BY updated_ms, digest LIMIT ?",
        (now.wall_ms, service, service, limit),
    )
    return [_record(row, now) for row in rows]


def num_dead(db: sqlite3.Connection, now: Now) -> int:
    query = "SELECT count(*) FROM records WHERE state = 'dead' AND expires_ms > ?"
    return int(db.execute(query, (now.wall_ms,)).fetchone()[0])


def revive(db: sqlite3.Connection, now: Now, digest: str, terms: Terms) -> Claimed | None:
    row = _row(db, digest)
    if row is None or row["expires_ms"] <= now.wall_ms:
        return None
    if _lapse(db, now, row):
        row = _known(db, digest)
    if row["state"] == State.PROCESSING and row["claim_id"] == terms.claim_id:
        return Claimed(row["token"], row["num_attempts"], False, False, "")
    if row["state"] != State.DEAD or request_of(db, digest) is None:
        return None
    return _take(db, now, row, terms, is_replay=True)


def purge(db: sqlite3.Connection, now: Now, digests: Sequence[str]) -> int:
    rows = [row for digest in digests if (row := _row(db, digest)) is not None]
    dead = [row for row in rows if row["state"] == State.DEAD or _lapse(db, now, row)]
    for row in dead:
        _delete(db, row["digest"])
    return len(dead)


def sweep(db: sqlite3.Connection, now: Now, limit: int) -> int:
    rows = db.execute(
        "SELECT digest FROM records WHERE expires_ms <= ? AND NOT (state = 'processing' "
        "AND boot_id = ? AND lease_until_ns > ?) ORDER BY expires_ms LIMIT ?",
        (now.wall_ms, now.boot_id, now.lease_ns, limit),
    ).fetchall()
    for (digest,) in rows:
        _delete(db, digest)
    return len(rows)


def _row(db: sqlite3.Connection, digest: str) -> sqlite3.Row | None:
    cursor = db.cursor()
    cursor.row_factory = sqlite3.Row
    row: sqlite3.Row | None = cursor.execute(
        "SELECT * FROM records WHERE digest = ?", (digest,)
    ).fetchone()
    return row


def _known(db: sqlite3.Connection, digest: str) -> sqlite3.Row:
    row = _row(db, digest)
    assert row is not None, "it was there in this transaction"
    return row


def _held(db: sqlite3.Connection, held: Held) -> tuple[int, int] | None:
    """The record's `id` and chunks of its answer so far; None if the claim is not held any more."""
    found: tuple[int, int] | None = db.execute(
        "SELECT id, num_chunks FROM records "
        "WHERE digest = ? AND token = ? AND state = 'processing'",
        (held.digest, held.token),
    ).fetchone()
    return found


def _is_over(row: sqlite3.Row, now: Now) -> bool:
    """Whether its time to live has ended. The wall clock may be set: it ends no lease."""
    return bool(row["expires_ms"] <= now.wall_ms) and not _is_lease_alive(row, now)


def _is_lease_alive(row: sqlite3.Row, now: Now) -> bool:
    """A lease of another boot is dead: whoever held it ended with that boot."""
    return bool(
        row["state"] == State.PROCESSING
        and row["boot_id"] == now.boot_id
        and row["lease_until_ns"] > now.lease_ns
    )


def _next_token(db: sqlite3.Connection) -> int:
    return int(db.execute("UPDATE sqlite_sequence SET seq = seq + 1 RETURNING seq").fetchone()[0])


def _lapse(db: sqlite3.Connection, now: Now, row: sqlite3.Row) -> bool:
    """A letter whose replay was killed is dead again: True if this is one.

    Only a replay's record is in progress and has a stored request.
    """
    is_lapsed = (
        row["state"] == State.PROCESSING
        and not _is_lease_alive(row, now)
        and row["expires_ms"] > now.wall_ms
        and request_of(db, row["digest"]) is not None
    )
    if is_lapsed:
        _delete_answer(db, row["digest"], keeps_request=True)
        db.execute(
            "UPDATE records SET state = 'dead', num_unknown = num_unknown + in_flight, "
            "in_flight = 0, num_chunks = 0, head = x'', cause = ?, updated_ms = ? WHERE id = ?",
            (REPLAY_INTERRUPTED, now.wall_ms, row["id"]),
        )
    return is_lapsed


def _take(
    db: sqlite3.Connection, now: Now, row: sqlite3.Row, terms: Terms, *, is_replay: bool = False
) -> Claimed:
    """Whatever was there of an answer goes: a new one begins, under a new token."""
    token = _next_token(db)
    _delete_answer(db, row["digest"], keeps_request=is_replay)
    taken_over = row["state"] == State.PROCESSING
    is_sent = terms.upstream != ""
    db.execute(
        "UPDATE records SET state = 'processing', token = ?, claim_id = ?, owner = ?, "
        "lease_until_ns = ?, boot_id = ?, num_unknown = num_unknown + in_flight, in_flight = ?, "
        "upstream = ?, deduplicates = ?, num_attempts = num_attempts + ?, num_chunks = 0, "
        "cause = '', head = x'', body = NULL, updated_ms = ?, expires_ms = ? WHERE digest = ?",
        (
            token,
            terms.claim_id,
            terms.owner,
            now.lease_ns + terms.lease_ms * NS_PER_MS,
            now.boot_id,
            is_sent,
            terms.upstream,
            terms.deduplicates,
            is_sent,
            now.wall_ms,
            now.wall_ms + terms.ttl_ms,
            row["digest"],
        ),
    )
    return Claimed(
        token,
        row["num_attempts"] + is_sent,
        taken_over,
        taken_over and bool(row["in_flight"]),
        row["upstream"] if taken_over else "",
    )


def _settle_unknown(db: sqlite3.Connection, now: Now, digest: str, terms: Terms) -> None:
    _delete_answer(db, digest)
    db.execute(
        "UPDATE records SET state = 'failed_final', token = ?, claim_id = '', in_flight = 0, "
        "num_unknown = num_unknown + 1, num_chunks = 0, head = x'', body = NULL, cause = ?, "
        "updated_ms = ?, expires_ms = ? WHERE digest = ?",
        (
            _next_token(db),
            OUTCOME_UNKNOWN,
            now.wall_ms,
            now.wall_ms + terms.failed_ttl_ms,
            digest,
        ),
    )


def _with_attempt(db: sqlite3.Connection, digest: str, attempt: Attempt) -> bytes:
    """The history with `attempt` at its end; a call that is sent twice adds it once."""
    (data,) = db.execute("SELECT history FROM records WHERE digest = ?", (digest,)).fetchone()
    if decode_history(data)[-1:] == (attempt,):
        return bytes(data)
    return extend_history(data, attempt)


def _add_chunks(
    db: sqlite3.Connection, record: int, first_chunk: int, chunks: Sequence[bytes]
) -> None:
    for position, data in enumerate(chunks, first_chunk):
        db.execute("INSERT OR IGNORE INTO chunks VALUES (?, ?, ?)", (record, position, data))


def _delete_answer(db: sqlite3.Connection, digest: str, *, keeps_request: bool = False) -> None:
    db.execute(
        "DELETE FROM chunks WHERE record = (SELECT id FROM records WHERE digest = ?)", (digest,)
    )
    if not keeps_request:
        db.execute("DELETE FROM requests WHERE digest = ?", (digest,))


def _delete(db: sqlite3.Connection, digest: str) -> None:
    _delete_answer(db, digest)
    db.execute("DELETE FROM records WHERE digest = ?", (digest,))


def _record(row: sqlite3.Row, now: Now) -> Record:
    return Record(
        digest=row["digest"],
        fingerprint=row["fingerprint"],
        key=row["key"],
        tenant=row["tenant"],
        service=row["service"],
        operation=row["operation"],
        state=State(row["state"]),
        token=row["token"],
        owner=row["owner"],
        is_lease_alive=_is_lease_alive(row, now),
        in_flight=bool(row["in_flight"]),
        upstream=row["upstream"],
        deduplicates=bool(row["deduplicates"]),
        num_attempts=row["num_attempts"],
        num_unknown=row["num_unknown"],
        num_chunks=row["num_chunks"],
        cause=row["cause"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
        expires_ms=row["expires_ms"],
        head=decode_head(row["head"]),
        history=decode_history(row["history"]),
    )
