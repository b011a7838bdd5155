"""From a request to the execution that answers it: claimed here, joined, followed or replayed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import structs

from takt.gateway.assignment import Assignment
from takt.gateway.errors import GatewayError, draining, store_unavailable
from takt.gateway.execution import Execution
from takt.gateway.keys import RequestKey
from takt.gateway.leader import Leader
from takt.gateway.parts import Parts
from takt.gateway.prompt_task import start_now
from takt.gateway.recorder import NoRecorder, RecordWriter
from takt.gateway.replay import Follower, settled_execution
from takt.gateway.states import (
    SETTLED,
    Claim,
    Claimed,
    Finish,
    Identity,
    Mismatch,
    OnUnknown,
    Running,
    Settled,
    State,
    Terms,
)
from takt.gateway.store.base import LEASES_PER_TTL, Held, StoreUnavailableError
from takt.gateway.tracing import RequestSpan
from takt.gateway.upstream import Upstream

logger = logging.getLogger("takt.gateway")

MAX_UNANSWERED = 10_000

RELEASE_SECONDS = 1.0

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Found(msgspec.Struct, frozen=True):
    execution: Execution
    is_duplicate: bool
    """The answer is, or will be, that of another request."""


class Gateway:
    """Owns every execution of this process, by digest."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._owner = os.urandom(16).hex()
        self._numbers = itertools.count()
        """Of claims; with the owner's name they tell one from every other."""
        self._executions: dict[str, Execution] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._unanswered: dict[str, tuple[Identity, Terms]] = {}
        """Claims that the store may have made and did not answer, by digest: nobody leads them."""
        parts.keeper.on_store_back = self._release_unanswered_soon

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    def start_without_key(self, assignment: Assignment, span: RequestSpan) -> Execution:
        """A request that nobody can ask for again: made again only if it was certainly not
        executed. Runs until it ends or its reader calls `abandon`."""
        method = assignment.request.method
        assignment = structs.replace(assignment, may_repeat=method in SAFE_METHODS)
        execution = Execution("")
        self.parts.budgets[assignment.route.name].deposit()
        leader = Leader(self.parts, assignment, execution, NoRecorder(), span)
        task = self._run(leader.run(self._choose(assignment)))
        if task is not None:
            execution.on_abandoned = task.cancel
        return execution

    async def find(self, key: RequestKey, assignment: Assignment, span: RequestSpan) -> Found:
        """The execution that answers a request with a key.

        Raises `GatewayError`: 422 for a key that was used with another body, 503 if the store
        does not answer, and then nothing is executed.
        """
        if self._is_stopping:
            raise draining()
        digest = key.identity.digest
        running = self._executions.get(digest)
        if running is not None:
            return self._join(running, key)
        first = self._choose(assignment)
        begin_ns = self.parts.clock.now_ns()
        claim = await self._claim(key, assignment, first)
        store_ns = self.parts.clock.now_ns() - begin_ns
        found = await self._found(claim, key, assignment, first, span)
        # Behind what a request waits for.
        self.parts.metrics.store_seconds.observe(store_ns / 1e9)
        return found

    async def _found(
        self,
        claim: Claim,
        key: RequestKey,
        assignment: Assignment,
        first: Upstream | None,
        span: RequestSpan,
    ) -> Found:
        digest = key.identity.digest
        if isinstance(claim, Mismatch):
            raise _mismatch()
        if isinstance(claim, Settled):
            return Found(await self._settled(claim, key, assignment), is_duplicate=True)
        # A claim of this process that was answered together with ours is registered by now.
        running = self._executions.get(digest)
        if running is not None and isinstance(claim, Running):
            return self._join(running, key)
        execution = Execution(key.identity.fingerprint)
        self._executions[digest] = execution
        if isinstance(claim, Claimed):
            self._lead(key, assignment, claim, execution, first, span)
            return Found(execution, is_duplicate=False)
        follower = Follower(
            self.parts.store,
            self.parts.sealer,
            digest,
            claim.token,
            execution,
            lambda: self.parts.keeper.allows_takeover,
        )
        self._run(self._follow(follower, digest, execution))
        return Found(execution, is_duplicate=True)

    async def stop(self) -> None:
        """Ends what still runs; its leases go to whoever asks next."""
        self._is_stopping = True
        try:
            await self.parts.keeper.release()
        except StoreUnavailableError as error:
            logger.error("leases were not released: %s", error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _join(self, execution: Execution, key: RequestKey) -> Found:
        if execution.fingerprint != key.identity.fingerprint:
            raise _mismatch()
        return Found(execution, is_duplicate=True)

    def _choose(self, assignment: Assignment) -> Upstream | None:
        return self.parts.router.choose(assignment.route.upstreams)

    async def _claim(
        self, key: RequestKey, assignment: Assignment, first: Upstream | None
    ) -> Claim:
        ttl, lease_ms = self.parts.policy.ttl, self.parts.options.lease_ms
        identity = key.identity
        unanswered = self._unanswered.pop(identity.digest, None)
        terms = Terms(
            # Asked again with its name, a claim that was made is that one.
            claim_id=unanswered[1].claim_id if unanswered else self._new_claim_id(),
            owner=self._owner,
            lease_ms=lease_ms,
            ttl_ms=max(1000 * ttl.processing, LEASES_PER_TTL * lease_ms),
            failed_ttl_ms=1000 * ttl.failed_final,
            upstream="" if first is None else first.url,
            deduplicates=first is not None and first.deduplicates,
            on_unknown=OnUnknown.RETRY if assignment.may_repeat else OnUnknown.FAIL,
            allow_takeover=self.parts.keeper.allows_takeover,
        )
        try:
            return await self.parts.store.claim(identity, terms)
        except StoreUnavailableError as error:
            self._unanswered[identity.digest] = (identity, terms)
            if len(self._unanswered) > MAX_UNANSWERED:
                del self._unanswered[next(iter(self._unanswered))]
            self.parts.keeper.store_failed(error)
            raise store_unavailable() from None

    def _new_claim_id(self) -> str:
        return f"{self._owner}{next(self._numbers)}"

    def _release_unanswered_soon(self) -> None:
        if self._unanswered:
            self._run(self._release_unanswered())

    async def _release_unanswered(self) -> None:
        """Ends claims that were sent to no upstream, for whoever asks next to begin anew."""
        # What a store did late it has done by then.
        await asyncio.sleep(RELEASE_SECONDS)
        finish = Finish(
            state=State.FAILED_RETRYABLE,
            ttl_ms=1000 * self.parts.policy.ttl.failed_retryable,
            cause="the store did not answer in time",
        )
        store = self.parts.store
        while self._unanswered:
            digest, unanswered = next(iter(self._unanswered.items()))
            try:
                snapshot = await store.read(digest)
                # Not if somebody asked again meanwhile, with the claim's own name.
                if self._unanswered.pop(digest, None) is None or digest in self._executions:
                    continue
                record = None if snapshot is None else snapshot.record
                if record and record.state is State.PROCESSING and record.owner == self._owner:
                    await store.finish(Held(digest, record.token), finish)
            except StoreUnavailableError as error:
                if digest not in self._executions:
                    self._unanswered.setdefault(digest, unanswered)
                self.parts.keeper.store_failed(error)
                return

    def _lead(
        self,
        key: RequestKey,
        assignment: Assignment,
        claim: Claimed,
        execution: Execution,
        first: Upstream | None,
        span: RequestSpan,
    ) -> None:
        service = assignment.route.service
        self.parts.budgets[assignment.route.name].deposit()
        if claim.taken_over:
            self.parts.metrics.takeovers.labels(service).inc()
        if claim.was_in_flight:
            self.parts.metrics.unknown.labels(service, "retry").inc()
            assignment, first = self._after_takeover(assignment, claim, first)
        digest = key.identity.digest
        writer = RecordWriter(
            self.parts.store,
            self.parts.sealer,
            Held(digest, claim.token),
            execution,
            self.parts.policy.ttl,
        )
        leader = Leader(self.parts, assignment, execution, writer, span)
        self.parts.keeper.add(writer)
        task = self._run(self._led(leader, first, writer, digest, execution, service))
        if task is not None:
            writer.on_lost = lambda: self._lost(task, service)

    def _after_takeover(
        self, assignment: Assignment, claim: Claimed, first: Upstream | None
    ) -> tuple[Assignment, Upstream | None]:
        """The upstream that may have executed the request is asked again, if it deduplicates:
        with `fail` only that one, else rather that one."""
        former = self.parts.router.upstreams.get(claim.upstream)
        if former is None or not former.deduplicates:
            return assignment, first
        if not assignment.may_repeat:
            # The claim was recorded with another upstream; the leader records this one.
            pinned = structs.replace(assignment, pinned=former.url)
            return pinned, first if first is former else None
        return assignment, former if former.can_serve and first is former else first

    async def _led(
        self,
        leader: Leader,
        first: Upstream | None,
        writer: RecordWriter,
        digest: str,
        execution: Execution,
        service: str,
    ) -> None:
        try:
            await leader.run(first)
        finally:
            self.parts.keeper.remove(writer)
            self._forget(digest, execution)
            if execution.state is not State.PROCESSING:
                status = "success" if execution.state is State.SUCCEEDED else "failed"
                self.parts.metrics.count_request(service, status)

    def _lost(self, task: asyncio.Task[None], service: str) -> None:
        self.parts.metrics.leases_lost.labels(service).inc()
        task.cancel()

    async def _follow(self, follower: Follower, digest: str, execution: Execution) -> None:
        try:
            await follower.run()
        finally:
            self._forget(digest, execution)

    def _forget(self, digest: str, execution: Execution) -> None:
        if self._executions.get(digest) is execution:
            del self._executions[digest]

    async def _settled(self, claim: Settled, key: RequestKey, assignment: Assignment) -> Execution:
        if claim.settled_now:
            self.parts.metrics.unknown.labels(assignment.route.service, "fail").inc()
        try:
            snapshot = await self.parts.store.read(key.identity.digest, 0)
        except StoreUnavailableError as error:
            self.parts.keeper.store_failed(error)
            raise store_unavailable() from None
        if snapshot is None or snapshot.record.state not in SETTLED:
            # Its time to live ended, or an operator replays it: the caller asks again.
            execution = Execution(key.identity.fingerprint)
            execution.lose()
            return execution
        return settled_execution(snapshot, self.parts.sealer)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """None if it ended at once."""
        try:
            task = start_now(work, self._loop)
        except Exception as error:
            _log(error)
            return None
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log(error)


def _log(error: BaseException) -> None:
    logger.error("a request failed here", exc_info=error)


def _mismatch() -> GatewayError:
    return GatewayError(
        422,
        "idempotency_key_reused",
        "This key was used with another body; use a new key for a new request.",
        param="Idempotency-Key",
    )
