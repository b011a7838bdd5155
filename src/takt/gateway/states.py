"""A request's states, the record that holds them, and what the stores answer.

    absent -> processing -> succeeded | failed_retryable | failed_final | dead

`failed_retryable` and `dead` lead back to `processing` (a new request, an operator's replay); the
others are settled until their time to live ends. Only the holder of a record's newest fencing
token moves it, and only inside a store's atomic script.
"""

from __future__ import annotations

import enum

import msgspec


class State(enum.StrEnum):
    ABSENT = "absent"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_FINAL = "failed_final"
    DEAD = "dead"


SETTLED = frozenset({State.SUCCEEDED, State.FAILED_FINAL, State.DEAD})
"""States whose answer is given again to every equal request."""

OUTCOME_UNKNOWN = "outcome_unknown"
"""Cause of a record whose attempt was sent and never answered, under `--on-unknown fail`."""


REPLAY_INTERRUPTED = "replay_interrupted"
"""Cause of a dead letter whose replay was stopped or killed; its last attempt may be executed."""


class OnUnknown(enum.StrEnum):
    """What follows an attempt that was sent and whose outcome nobody knows."""

    RETRY = "retry"
    FAIL = "fail"


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt in a record's history."""

    number: int
    upstream: str
    cause: str
    elapsed_ms: int
    status: int | None = None
    wait_ms: int = 0


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """Status and headers of an answer; headers as the upstream sent them, end-to-end only."""

    status: int
    headers: list[tuple[str, str]]
    is_body_kept: bool = True
    """False where bodies are not kept at rest."""


class StoredRequest(msgspec.Struct, frozen=True):
    """What a replay of a dead letter sends again; holds no credential."""

    method: str
    path_and_query: str
    headers: list[tuple[str, str]]
    body: bytes
    key: str
    """As the upstream sees it."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a record is filed under. `digest` alone is the primary key."""

    digest: str
    fingerprint: str
    key: str
    tenant: str
    service: str
    operation: str


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim asks for. `allow_takeover` False waits for the holder of an expired lease."""

    claim_id: str
    owner: str
    lease_ms: int
    ttl_ms: int
    """Of the record while it is processing."""
    failed_ttl_ms: int
    """Of the record if an unknown outcome settles it here."""
    upstream: str
    """Where an attempt is sent at once; empty if it is not sent yet."""
    deduplicates: bool
    on_unknown: OnUnknown
    allow_takeover: bool = True


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as stored; times are wall-clock milliseconds since 1970."""

    digest: str
    fingerprint: str
    key: str
    tenant: str
    service: str
    operation: str
    state: State
    token: int
    owner: str
    is_lease_alive: bool
    in_flight: bool
    upstream: str
    deduplicates: bool
    num_attempts: int
    num_unknown: int
    num_chunks: int
    cause: str
    created_ms: int
    updated_ms: int
    expires_ms: int
    head: Head | None
    history: tuple[Attempt, ...]


class Claimed(msgspec.Struct, frozen=True):
    """The caller holds the lease. `taken_over` if an expired one was taken."""

    token: int
    num_attempts: int
    taken_over: bool
    was_in_flight: bool
    """The former holder had sent an attempt whose outcome is unknown."""
    upstream: str
    """Where that attempt was sent; empty if there was none."""


class Running(msgspec.Struct, frozen=True):
    """Somebody else holds the lease under `token`."""

    token: int


class Settled(msgspec.Struct, frozen=True):
    """The answer is known. `settled_now` if this very claim settled an unknown outcome."""

    state: State
    settled_now: bool = False


class Mismatch(msgspec.Struct, frozen=True):
    """The key was used with another body."""


Claim = Claimed | Running | Settled | Mismatch


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a claim: its state, and the rest of its answer."""

    state: State
    ttl_ms: int
    head: Head | None = None
    first_chunk: int = 0
    chunks: tuple[bytes, ...] = ()
    cause: str = ""
    attempt: Attempt | None = None
    request: bytes | None = None
    """A sealed `StoredRequest`, kept for dead letters only."""
