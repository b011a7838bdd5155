"""Leads one request to its answer: attempts, waits, and the end of its record."""

from __future__ import annotations

import asyncio

from takt.gateway.assignment import Assignment
from takt.gateway.attempt import AttemptFailedError, OpenAnswer
from takt.gateway.closing import Closing
from takt.gateway.errors import (
    Answer,
    failure_error,
    internal_error,
    store_lost,
    stream_lost,
    too_large,
)
from takt.gateway.execution import Execution
from takt.gateway.hedge import send_hedged
from takt.gateway.http.response import EnoughError
from takt.gateway.parts import Parts
from takt.gateway.recorder import LeaseLostError, Recorder
from takt.gateway.retry import Failure, GiveUp, Outcome, Retry, decide
from takt.gateway.states import Attempt, State
from takt.gateway.store.base import StoreUnavailableError
from takt.gateway.stream_copy import StreamCopy, StreamDivergedError, expects_done
from takt.gateway.tracing import AttemptSpan, RequestSpan
from takt.gateway.upstream import Upstream
from takt.idempotency import KEY_HEADER

NS_PER_MS = 1_000_000

STREAM_BROKEN = "stream_broken"

NO_UPSTREAM = Failure(
    kind="connect", outcome=Outcome.NOT_EXECUTED, cause="no upstream can be asked now"
)


class ResponseTooLargeError(Exception):
    """The answer is longer than what may be kept."""


class Leader:
    """Makes attempts until one answers, or no further one may be made.

    What a client takes for an answer is recorded before it is given: one that was given and then
    forgotten would be followed by another.
    """

    def __init__(
        self,
        parts: Parts,
        assignment: Assignment,
        execution: Execution,
        recorder: Recorder,
        span: RequestSpan,
    ) -> None:
        self._parts = parts
        self._assignment = assignment
        self._route = assignment.route
        self._policy = assignment.route.retry
        self._execution = execution
        self._recorder = recorder
        self._span = span
        self._urls: tuple[str, ...] = assignment.route.upstreams
        if assignment.pinned:
            self._urls = (assignment.pinned,)
        self._prefer, self._avoid = "", ""
        self._is_on_fallback = False
        self._num_tries = 0

    async def run(self, first: Upstream | None) -> None:
        """Ends the execution, in every case. `first` was recorded with the claim."""
        metrics = self._parts.metrics
        try:
            await self._lead(first)
        except LeaseLostError:
            metrics.leases_lost.labels(self._route.service).inc()
            self._execution.lose()
        except StoreUnavailableError as error:
            self._parts.keeper.store_failed(error)
            self._execution.fail(store_lost())
        except asyncio.CancelledError:
            self._execution.lose()
            raise
        except Exception:
            self._execution.fail(internal_error())
            raise
        finally:
            if self._num_tries:
                metrics.observe_tries(self._route.service, self._num_tries)

    async def _lead(self, first: Upstream | None) -> None:
        upstream = first
        while True:
            if upstream is None:
                upstream = await self._wait_for_upstream()
                if upstream is None:
                    none = GiveUp(State.FAILED_RETRYABLE, NO_UPSTREAM.cause)
                    await self._closing.give_up(none, NO_UPSTREAM, None)
                    return
                await self._recorder.begin_attempt(upstream)
            wait_ms = await self._try(upstream)
            if wait_ms is None:
                return
            upstream = None
            await asyncio.sleep(wait_ms / 1000)

    async def _try(self, upstream: Upstream) -> int | None:
        """One attempt; the wait before the next, or None if none follows."""
        self._num_tries += 1
        begin_ns = self._parts.clock.now_ns()
        span = self._span.attempt(self._num_tries, upstream.url)
        try:
            await self._attempt(upstream, span)
        except AttemptFailedError as error:
            elapsed_ms = (self._parts.clock.now_ns() - begin_ns) // NS_PER_MS
            return await self._after_failure(upstream, error.failure, elapsed_ms, span)
        self._parts.metrics.count_attempt(self._route.service, upstream.url, "success")
        span.end(cause="", status=None, is_final=True)
        return None

    async def _attempt(self, upstream: Upstream, span: AttemptSpan) -> None:
        """Ends the execution, or raises `AttemptFailedError`."""
        chosen, answer = await self._send(upstream, span)
        try:
            if answer.is_stream:
                await self._copy_stream(answer, chosen)
            else:
                await self._read_whole(answer)
        except AttemptFailedError:
            chosen.failure()
            raise
        except ResponseTooLargeError:
            error = too_large(self._parts.options.max_response_bytes)
            await self._closing.end_with_error(State.FAILED_FINAL, error, error.code)
        except StreamDivergedError:
            state = self._state_of_broken_stream()
            error = (
                stream_lost()
                if state is State.FAILED_RETRYABLE
                else failure_error(state, STREAM_BROKEN, "stream")
            )
            await self._closing.end_with_error(state, error, STREAM_BROKEN)
        finally:
            answer.close()

    async def _send(self, upstream: Upstream, span: AttemptSpan) -> tuple[Upstream, OpenAnswer]:
        headers = span.headers()
        if self._assignment.key:
            headers[KEY_HEADER] = self._assignment.key

        async def send(one: Upstream) -> OpenAnswer:
            begin_ns = self._parts.clock.now_ns()
            one.begin()
            try:
                answer = await self._parts.client.send(
                    one, self._assignment.request, headers, self._policy, self._remaining_ms()
                )
            except BaseException as error:
                _report(one, error)
                one.end()
                raise
            latency_ns = self._parts.clock.now_ns() - begin_ns
            if answer.is_good:  # which is noted once the client has it
                answer.on_close = lambda: one.end_well(latency_ns)
            else:
                one.success(latency_ns)
                answer.on_close = one.end
            return answer

        if self._policy.hedge_after_ms is None:
            return upstream, await send(upstream)
        return await send_hedged(
            upstream,
            send,
            after_ms=self._policy.hedge_after_ms,
            choose_second=lambda: self._choose_hedge(upstream),
        )

    @property
    def _closing(self) -> Closing:
        return Closing(self._parts, self._assignment, self._execution, self._recorder)

    def _choose_hedge(self, first: Upstream) -> Upstream | None:
        """A second upstream, if a second execution is allowed and the budget has room for it."""
        if not self._assignment.may_repeat or self._execution.num_bytes:
            return None
        second = self._parts.router.choose(self._urls, avoid=first.url)
        if second is None or second is first or not self._budget_allows():
            return None
        self._parts.metrics.hedges.labels(self._route.service).inc()
        return second

    async def _copy_stream(self, answer: OpenAnswer, upstream: Upstream) -> None:
        path = self._assignment.request.path_and_query.partition("?")[0]
        copy = StreamCopy(
            self._execution,
            answer.head,
            expects_done=upstream.sends_done and expects_done(path),
        )

        def take(piece: bytes) -> None:
            copy.feed(piece)
            self._check_size(self._execution.num_bytes + len(copy.rest))
            if copy.is_whole:
                raise EnoughError

        await answer.read(take)
        copy.check_end()
        head, rest = self._execution.head or answer.head, copy.rest
        await self._recorder.finish(State.SUCCEEDED, head, rest)
        if rest:
            self._execution.append(rest)
        self._execution.head = head
        self._execution.complete(State.SUCCEEDED)
        answer.leave()

    async def _read_whole(self, answer: OpenAnswer) -> None:
        body = answer.whole()
        if body is None:
            body = await self._read_pieces(answer)
        self._check_size(len(body))
        if self._execution.num_bytes:
            raise StreamDivergedError
        state = State.SUCCEEDED if answer.head.status < 400 else State.FAILED_FINAL
        cause = "" if state is State.SUCCEEDED else f"status {answer.head.status}"
        await self._recorder.finish(state, answer.head, body, cause=cause)
        self._execution.complete(state, Answer(answer.head, body))

    async def _read_pieces(self, answer: OpenAnswer) -> bytes:
        pieces: list[bytes] = []
        num_bytes = 0

        def take(piece: bytes) -> None:
            nonlocal num_bytes
            pieces.append(piece)
            num_bytes += len(piece)
            self._check_size(num_bytes)

        await answer.read(take)
        return b"".join(pieces)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._parts.options.max_response_bytes:
            raise ResponseTooLargeError

    async def _after_failure(
        self, upstream: Upstream, failure: Failure, elapsed_ms: int, span: AttemptSpan
    ) -> int | None:
        decision = self._decide(upstream, failure)
        goes_on_fallback = (
            isinstance(decision, GiveUp)
            and decision.state is State.DEAD
            and not self._is_on_fallback
            and bool(self._route.fallback)
        )
        if goes_on_fallback:
            self._is_on_fallback = True
            self._urls = self._route.fallback
            decision = Retry(0)
        wait_ms = decision.wait_ms if isinstance(decision, Retry) else None
        span.end(cause=failure.cause, status=failure.status, is_final=wait_ms is None)
        self._count(upstream, failure, repeats=wait_ms is not None)
        attempt = Attempt(
            number=self._num_tries,
            upstream=upstream.url,
            cause=failure.cause,
            elapsed_ms=elapsed_ms,
            status=failure.status,
            wait_ms=wait_ms or 0,
        )
        if isinstance(decision, GiveUp):
            await self._closing.give_up(decision, failure, attempt)
            return None
        await self._recorder.end_attempt(attempt)
        self._parts.metrics.retry_wait.labels(self._route.service).observe(decision.wait_ms / 1000)
        if not goes_on_fallback:
            self._set_preference(upstream, failure)
        return decision.wait_ms

    def _decide(self, upstream: Upstream, failure: Failure) -> Retry | GiveUp:
        if self._execution.num_bytes and not upstream.deduplicates:
            return GiveUp(self._state_of_broken_stream(), STREAM_BROKEN)
        return decide(
            self._policy,
            failure,
            num_tries=self._num_tries,
            remaining_ms=self._remaining_ms(),
            may_repeat=self._assignment.may_repeat or upstream.deduplicates,
            withdraw=self._budget_allows,
            uniform=self._parts.rng.uniform,
        )

    def _state_of_broken_stream(self) -> State:
        """A stream that broke was executed, in part at least."""
        return State.FAILED_RETRYABLE if self._assignment.may_repeat else State.FAILED_FINAL

    def _set_preference(self, upstream: Upstream, failure: Failure) -> None:
        """What may have been executed goes to the same upstream again if it deduplicates;
        everything else rather elsewhere."""
        self._prefer, self._avoid = "", upstream.url
        if not upstream.deduplicates:
            return
        if failure.outcome is Outcome.UNKNOWN or self._execution.num_bytes:
            self._prefer, self._avoid = upstream.url, ""
            if not self._assignment.may_repeat or self._execution.num_bytes:
                self._urls = (upstream.url,)

    async def _wait_for_upstream(self) -> Upstream | None:
        """Waits while none can be asked, within the route's patience and the deadline."""
        until_ns = self._parts.clock.now_ns() + self._policy.patience_ms * NS_PER_MS
        until_ns = min(until_ns, self._assignment.deadline_ns)
        router = self._parts.router
        while True:
            chosen = router.choose(self._urls, prefer=self._prefer, avoid=self._avoid)
            if chosen is not None or self._parts.clock.now_ns() >= until_ns:
                return chosen
            # Those that wait for the same breaker must not all come at the same moment.
            wait_ms = router.wait_ms(self._urls) + self._parts.rng.uniform(1, 20)
            await asyncio.sleep(wait_ms / 1000)

    def _count(self, upstream: Upstream, failure: Failure, *, repeats: bool) -> None:
        metrics = self._parts.metrics
        metrics.count_attempt(self._route.service, upstream.url, failure.outcome.value)
        if failure.outcome is Outcome.UNKNOWN:
            metrics.unknown.labels(self._route.service, "retry" if repeats else "fail").inc()

    def _budget_allows(self) -> bool:
        return self._parts.budgets[self._route.name].withdraw()

    def _remaining_ms(self) -> int:
        return max(0, (self._assignment.deadline_ns - self._parts.clock.now_ns()) // NS_PER_MS)


def _report(upstream: Upstream, error: BaseException) -> None:
    """What an attempt that gave no answer says about its upstream: a refusal says it is alive."""
    if not isinstance(error, AttemptFailedError):
        upstream.breaker.forget()
        return
    failure = error.failure
    is_refusal = failure.status in (408, 425, 429) or (
        failure.status == 503 and failure.retry_after_ms is not None
    )
    if is_refusal:
        upstream.breaker.success()
    else:
        upstream.failure()
