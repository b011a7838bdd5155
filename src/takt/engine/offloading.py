"""Carries the offload policy out: looks at replicas after their steps, and moves requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from takt.engine.messages import AddRequest
from takt.scheduler.offload import (
    Candidate,
    Move,
    OffloadPolicy,
    ReplicaPressure,
    is_pressed,
    plan_moves,
)
from takt.scheduler.replica_load import ReplicaLoad, Work
from takt.scheduler.routing import Route, Router


@dataclass(slots=True)
class Journey:
    """A request on its way through replicas, from its first one to its end."""

    request: AddRequest
    route: Route
    replica: int = -1
    """Where it is, or was last; -1 before it is anywhere."""
    left: set[int] = field(default_factory=set)
    """Replicas where it has been."""
    num_deaths: int = 0
    """Of engines, while it was there."""
    is_aborted: bool = False
    has_output: bool = False
    """Whether the client has something of it."""
    token_ids: list[int] = field(default_factory=list)
    """What the client has, where another replica could go on from it."""
    num_preempted_at: int = -1
    """Tokens that it had when it was preempted last."""
    has_moved: bool = False
    destination: int | None = None
    """Where it goes on, once it has been taken from its replica."""

    @property
    def is_preempted(self) -> bool:
        return len(self.token_ids) == self.num_preempted_at

    @property
    def can_resume(self) -> bool:
        """Whether another replica could go on where this one is: it would take what has been
        generated for a part of the prompt, which penalties and scores tell apart."""
        sampling = self.request.sampling
        return (
            sampling.n == 1
            and sampling.max_tokens is not None
            and sampling.prompt_logprobs is None
            and not sampling.has_penalties
        )

    def rest(self) -> AddRequest:
        """The request for what is still to come. Draws are keyed by position, so it gives the
        tokens that the first one would have."""
        num_tokens = len(self.token_ids)
        if not num_tokens:
            return self.request
        sampling = self.request.sampling
        assert sampling.max_tokens is not None
        return msgspec.structs.replace(
            self.request,
            prompt_token_ids=[*self.request.prompt_token_ids, *self.token_ids],
            num_generated_before=num_tokens,
            sampling=msgspec.structs.replace(
                sampling,
                max_tokens=sampling.max_tokens - num_tokens,
                min_tokens=max(0, sampling.min_tokens - num_tokens),
            ),
        )


class Offloading:
    """Looks at a replica after each of its steps, and says which requests move.

    A request moves once: it is never handed back and forth.
    """

    def __init__(
        self, policy: OffloadPolicy, router: Router, journeys: Mapping[str, Journey]
    ) -> None:
        self.policy = policy
        self._router = router
        self._journeys = journeys
        self._looked_ns = [0] * len(router.loads)
        self._copied_ns = [0] * len(router.loads)

    def preempted(self, request_ids: Iterable[str]) -> None:
        """These lost their place in a step."""
        for request_id in request_ids:
            journey = self._journeys.get(request_id)
            if journey is not None:
                journey.num_preempted_at = len(journey.token_ids)

    def is_pressed(self, replica: int, now_ns: int) -> bool:
        """Whether there is something to do, asked after a step of the replica."""
        load = self._router.loads[replica]
        if now_ns - self._looked_ns[replica] < self.policy.interval_ms * 1e6:
            return False
        if not is_pressed(self.policy, ReplicaPressure(load.memory, load.num_waiting, 0)):
            return False
        self._looked_ns[replica] = now_ns
        return True

    def may_copy(self, replica: int, now_ns: int) -> bool:
        """Whether a pressed replica is to copy its cold blocks now."""
        if now_ns - self._copied_ns[replica] < self.policy.copy_interval_ms * 1e6:
            return False
        self._copied_ns[replica] = now_ns
        return True

    def moves(self, source: int, alive: Sequence[int], now_ns: int) -> list[Move]:
        """The longest waiting go first: their first tokens are the latest."""
        states = {r: self._pressure(self._router.loads[r], now_ns) for r in (source, *alive)}
        preempted = [
            journey
            for journey in self._journeys.values()
            if journey.replica == source and journey.token_ids and journey.is_preempted
        ]
        # The engine waits for some of those that have no token yet; the others are being computed.
        load = self._router.loads[source]
        prompts = [self._journeys[name] for name in load.prompt_ids() if name in self._journeys]
        num_waiting = max(0, load.num_waiting - len(preempted))
        waiting = prompts[max(0, len(prompts) - num_waiting) :]
        candidates = [
            self._candidate(journey, alive)
            for journey in (*waiting, *preempted)
            if not journey.has_moved and (journey.token_ids or not journey.has_output)
        ]
        pays = self._pays(source)
        return plan_moves(self.policy, source, states, candidates, pays)

    def _pressure(self, load: ReplicaLoad, now_ns: int) -> ReplicaPressure:
        return ReplicaPressure(load.memory, load.num_waiting, load.longest_wait_ns(now_ns))

    def _candidate(self, journey: Journey, alive: Sequence[int]) -> Candidate:
        num_tokens = max(journey.route.work.num_prompt_tokens, 1)
        hits = {
            r: self._router.num_cached_tokens(r, journey.route) / num_tokens
            for r in (journey.replica, *alive)
        }
        share = self._router.loads[journey.replica].share_of(journey.route.work)
        return Candidate(journey.request.request_id, share, hits)

    def _pays(self, source: int) -> Callable[[Candidate, int], bool]:
        """One that has begun must compute again there what it has here."""

        def pays(candidate: Candidate, destination: int) -> bool:
            journey = self._journeys[candidate.request_id]
            if not journey.token_ids:
                return True
            work = journey.route.work
            num_tokens = len(journey.token_ids)
            rest = Work(work.num_prompt_tokens + num_tokens, 1, work.max_tokens - num_tokens)
            here, there = (
                self._router.loads[r].finish_ns(
                    rest, self._router.num_cached_tokens(r, journey.route)
                )
                for r in (source, destination)
            )
            return there < here

        return pays
