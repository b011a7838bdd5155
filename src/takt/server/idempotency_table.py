"""Which requests with an `Idempotency-Key` run, and which answers are kept for the next ones."""

from __future__ import annotations

from takt.clock import Clock
from takt.server.errors import HttpError
from takt.server.recording import Recording

NS_PER_SECOND = 1_000_000_000

Key = tuple[str, str, str]
"""Digest of the credential, path, and the client's key: keys of two tenants never meet."""


class IdempotencyTable:
    """Recordings by key. A successful one is kept for a time, and within a number of bytes.

    A failed one is forgotten as it ends: the next request with its key is executed anew.
    """

    def __init__(self, ttl_seconds: float, max_bytes: int, clock: Clock) -> None:
        self._ttl_ns = int(ttl_seconds * NS_PER_SECOND)
        self._max_bytes = max_bytes
        self._clock = clock
        self._running: dict[Key, Recording] = {}
        self._kept: dict[Key, tuple[int, Recording]] = {}
        """With the time at which each ends, which is also their order."""
        self.num_kept_bytes = 0

    @property
    def num_unattended(self) -> int:
        """Those that run while no client waits for them."""
        return sum(not recording.readers for recording in self._running.values())

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def find(self, key: Key, fingerprint: str) -> Recording | None:
        """The recording of an earlier request; raises 422 if that had another body."""
        self._forget_expired()
        found = self._running.get(key)
        if found is None and key in self._kept:
            found = self._kept[key][1]
        if found is not None and found.fingerprint != fingerprint:
            raise HttpError(
                422,
                "this key was used with another body; use a new key for a new request",
                param="Idempotency-Key",
                code="idempotency_key_reused",
            )
        return found

    def begin(self, key: Key, fingerprint: str) -> Recording:
        recording = self._running[key] = Recording(fingerprint)
        return recording

    def end(self, key: Key) -> None:
        """Ends what runs under a key, and keeps it if it is an answer to give again."""
        recording = self._running.pop(key)
        recording.end()
        if not recording.is_success or not self._ttl_ns or recording.num_bytes > self._max_bytes:
            return
        self._kept[key] = (self._clock.now_ns() + self._ttl_ns, recording)
        self.num_kept_bytes += recording.num_bytes
        while self.num_kept_bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))

    def _forget_expired(self) -> None:
        now_ns = self._clock.now_ns()
        while self._kept:
            key, (end_ns, _) = next(iter(self._kept.items()))
            if end_ns > now_ns:
                return
            self._forget(key)

    def _forget(self, key: Key) -> None:
        _, recording = self._kept.pop(key)
        self.num_kept_bytes -= recording.num_bytes
