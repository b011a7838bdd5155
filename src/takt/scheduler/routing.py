"""Which replica a request goes to: where it would be finished first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from takt.kvcache.prefix_directory import PrefixDirectory
from takt.scheduler.replica_load import ReplicaLoad, StepTimes, Work
from takt.scheduler.step_time import StepFeatures

_MAX_AGE_NS = 5_000_000_000
"""A replica that made no step for so long may be faster than it was when it last did."""

_ORDINARY = StepFeatures(8, 32, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Route:
    """A request on its way to a replica."""

    work: Work
    names: Sequence[bytes]
    """Of its prompt's first blocks; empty where nothing is shared."""


class Router:
    """Knows the load of each replica, and what prefixes it should have."""

    def __init__(self, loads: Sequence[ReplicaLoad], directory: PrefixDirectory | None) -> None:
        self.loads = loads
        self._directory = directory

    def route(
        self, token_ids: Sequence[int], work: Work, cache_salt: str, *, shares_prefix: bool
    ) -> Route:
        names: Sequence[bytes] = ()
        if self._directory is not None and shares_prefix:
            names = self._directory.names(token_ids, (cache_salt,))
        return Route(work, names)

    def order(self, route: Route, alive: Sequence[int], now_ns: int) -> list[int]:
        """The replicas among `alive`, the one that would finish the request first in front.

        What a replica has of the prompt it need not compute, so a cached prefix wins over a shorter
        queue exactly where it saves more time than that. Equal ones take turns.
        """
        best: StepTimes | None = None
        if alive:
            loads = [self.loads[replica] for replica in alive]
            best = min((load.model for load in loads), key=lambda m: m.predict_ns(_ORDINARY))

        def key(replica: int) -> tuple[float, int, int]:
            load = self.loads[replica]
            is_old = load.last_step_ns is None or now_ns - load.last_step_ns > _MAX_AGE_NS
            model = best if is_old else None
            finish_ns = load.finish_ns(route.work, self.num_cached_tokens(replica, route), model)
            return finish_ns, load.num_requests, load.last_sent_ns

        return sorted(alive, key=key)

    def num_cached_tokens(self, replica: int, route: Route) -> int:
        """Tokens of the prompt that the replica should have already."""
        if self._directory is None:
            return 0
        return self._directory.num_cached_tokens(replica, route.names)

    def sent(self, request_id: str, route: Route, replica: int, now_ns: int) -> None:
        """A request goes to a replica."""
        num_cached = self.num_cached_tokens(replica, route)
        self.loads[replica].sent(request_id, route.work, num_cached, now_ns)
        if self._directory is not None:
            self._directory.sent(replica, route.names)

    def restart(self, replica: int, num_kv_tokens: int, num_blocks: int) -> None:
        """A replica is a new engine, with a pool of so many tokens and blocks."""
        self.loads[replica].restart(num_kv_tokens)
        if self._directory is not None:
            self._directory.restart(replica, num_blocks)
