"""What a store of idempotency records does. Each call is one atomic script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from takt.errors import TaktError
from takt.gateway.states import Attempt, Claim, Claimed, Finish, Head, Identity, Record, Terms

LEASES_PER_TTL = 2
"""A record that is held is kept for so many leases more with each sign of life, at least."""


class StoreUnavailableError(TaktError):
    """The store did not answer, or could not write; nothing may be executed. HTTP 503."""


class Held(msgspec.Struct, frozen=True):
    """A claim that is held: a record and the fencing token it was given."""

    digest: str
    token: int


class Snapshot(msgspec.Struct, frozen=True):
    """A record and the chunks of its answer from the one asked for on."""

    record: Record
    chunks: tuple[bytes, ...]


class Store(Protocol):
    """Records by digest. Every call raises `StoreUnavailableError` if the store cannot answer.

    A call whose answer was lost may be sent again with the same arguments: it has one effect.
    Calls by a holder return False once a newer token exists or the record is gone; the caller has
    then lost the record and must not answer from its own attempt.
    """

    async def open(self) -> None:
        """Raises `ConfigError` if the store cannot be used as it is configured."""
        ...

    async def close(self) -> None: ...

    async def ping(self, *, writes: bool = False) -> None:
        """`writes` asks whether it takes writes too."""
        ...

    async def claim(self, identity: Identity, terms: Terms) -> Claim:
        """absent or failed_retryable or an expired lease -> processing, with a new token.

        Durable when it returns, unless an attempt of unknown outcome would be made again anyway.
        """
        ...

    async def heartbeat(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        """Extends leases from now; one answer per lease."""
        ...

    async def begin_attempt(self, held: Held, upstream: str, deduplicates: bool) -> bool:
        """Notes, before it is sent, that a further attempt is in flight."""
        ...

    async def end_attempt(self, held: Held, attempt: Attempt) -> bool:
        """Notes that an attempt failed and nothing is in flight."""
        ...

    async def append(
        self, held: Held, head: Head, first_chunk: int, chunks: Sequence[bytes]
    ) -> bool:
        """Adds to a running answer. `first_chunk` is the index of the first of `chunks`."""
        ...

    async def finish(self, held: Held, finish: Finish) -> bool:
        """processing -> `finish.state`; durable when it returns."""
        ...

    async def read(self, digest: str, first_chunk: int | None = None) -> Snapshot | None:
        """None if absent. Chunks only if `first_chunk` is given."""
        ...

    async def request_of(self, digest: str) -> bytes | None:
        """The sealed request of a dead letter; kept while one is replayed, until that succeeds."""
        ...

    async def dead_letters(self, limit: int, service: str | None = None) -> list[Record]:
        """The oldest first. One whose replay gave no sign of life for a lease is dead again."""
        ...

    async def revive(self, digest: str, terms: Terms) -> Claimed | None:
        """dead -> processing, for a replay; None if it is not dead, or its request not kept.

        Nobody takes over from a replay: once its lease has expired, the letter is dead again for
        whoever claims, lists, revives or purges it.
        """
        ...

    async def purge(self, digests: Sequence[str]) -> int:
        """dead -> absent; returns how many."""
        ...

    async def sweep(self, limit: int) -> int:
        """Deletes up to `limit` records whose time to live has ended; returns how many."""
        ...

    async def num_dead(self) -> int:
        """Those that are being replayed are not counted."""
        ...
