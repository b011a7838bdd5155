"""Cooperative offload: a replica that runs out of memory gives work to one that has room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from takt.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicy:
    """When a replica offloads, where to, and what it keeps."""

    memory_threshold: float = 0.85
    """Share of the KV pool beyond which a replica is pressed; none is filled beyond it either."""
    min_waiting: int = 3
    """Requests that must wait there too: a full pool in which nobody waits is well used."""
    memory_weight: float = 0.4
    """Of the free share of the pool in a replica's score."""
    wait_weight: float = 0.35
    """Of how little its requests wait."""
    hit_weight: float = 0.25
    """Of the share of the request's prompt that it has cached."""
    full_wait_ms: float = 1000.0
    """A wait that counts as the longest there is."""
    min_gain: float = 0.1
    """Least difference of scores for which a request moves: what is equal stays where it is."""
    hot_share: float = 0.6
    """Share of a pressed replica's unused cached blocks, the most recently used, that stay as they
    are; the others are copied to host memory, where there is some."""
    interval_ms: float = 50.0
    """Least time between two looks at a replica."""
    copy_interval_ms: float = 500.0
    """Least time between two times that it is told to copy cold blocks."""

    def __post_init__(self) -> None:
        for name in ("memory_threshold", "hot_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} lies between 0 and 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ReplicaPressure:
    """What a replica's score is made of."""

    memory: float
    """Share of its KV pool in use."""
    num_waiting: int
    longest_wait_ns: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that could move: nothing of it runs at the moment."""

    request_id: str
    pool_share: float
    """Of a replica's pool, that it needs."""
    hit_rates: Mapping[int, float]
    """Share of its prompt that each replica has cached."""


@dataclass(frozen=True, slots=True)
class Move:
    request_id: str
    destination: int


def is_pressed(policy: OffloadPolicy, state: ReplicaPressure) -> bool:
    return state.memory > policy.memory_threshold and state.num_waiting >= policy.min_waiting


def score(policy: OffloadPolicy, state: ReplicaPressure, hit_rate: float) -> float:
    """How good a place a replica is for a request: 0 is worst, the sum of the weights best."""
    wait = min(state.longest_wait_ns / 1e6 / policy.full_wait_ms, 1.0)
    return (
        policy.memory_weight * (1.0 - min(state.memory, 1.0))
        + policy.wait_weight * (1.0 - wait)
        + policy.hit_weight * hit_rate
    )


def plan_moves(
    policy: OffloadPolicy,
    source: int,
    states: Mapping[int, ReplicaPressure],
    candidates: Sequence[Candidate],
    pays: Callable[[Candidate, int], bool] = lambda candidate, destination: True,
) -> list[Move]:
    """Which of a pressed replica's requests move, and where to; `states` are of those that live.

    In the order of `candidates`, while the source is pressed. A request goes to the replica with
    the best score, if that is better than the source's by `min_gain`, if the request leaves the
    pool there below the threshold, and if `pays` agrees.
    """
    left = dict(states)
    moves = []
    for candidate in candidates:
        if not is_pressed(policy, left[source]):
            break
        best = _best(policy, source, left, candidate, pays)
        if best is None:
            continue
        moves.append(Move(candidate.request_id, best))
        there, here = left[best], left[source]
        left[best] = replace(
            there, memory=there.memory + candidate.pool_share, num_waiting=there.num_waiting + 1
        )
        left[source] = replace(here, num_waiting=here.num_waiting - 1)
    return moves


def _best(
    policy: OffloadPolicy,
    source: int,
    states: Mapping[int, ReplicaPressure],
    candidate: Candidate,
    pays: Callable[[Candidate, int], bool],
) -> int | None:
    def score_of(replica: int) -> float:
        return score(policy, states[replica], candidate.hit_rates.get(replica, 0.0))

    least = score_of(source) + policy.min_gain
    fitting = [
        replica
        for replica, state in states.items()
        if replica != source
        and not is_pressed(policy, state)
        and state.memory + candidate.pool_share <= policy.memory_threshold
        and score_of(replica) >= least
        and pays(candidate, replica)
    ]
    return max(fitting, key=lambda replica: (score_of(replica), -replica), default=None)
