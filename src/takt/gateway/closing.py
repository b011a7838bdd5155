"""The end of a request that got no answer of use: recorded, told, and kept if it is dead."""

from __future__ import annotations

import msgspec

from takt.gateway.assignment import Assignment
from takt.gateway.dead_letter_notices import DeadLetterNotice
from takt.gateway.errors import Answer, GatewayError, error_answer, error_event, failure_error
from takt.gateway.execution import Execution
from takt.gateway.headers import without_secrets
from takt.gateway.parts import Parts
from takt.gateway.recorder import Recorder
from takt.gateway.retry import Failure, GiveUp
from takt.gateway.states import OUTCOME_UNKNOWN, Attempt, State, StoredRequest


class Closing:
    def __init__(
        self, parts: Parts, assignment: Assignment, execution: Execution, recorder: Recorder
    ) -> None:
        self._parts = parts
        self._assignment = assignment
        self._execution = execution
        self._recorder = recorder

    async def give_up(self, decision: GiveUp, failure: Failure, attempt: Attempt | None) -> None:
        error = failure_error(decision.state, decision.cause, failure.kind)
        if self._execution.head is not None:
            event = failure.body if failure.kind == "stream" else b""
            await self.end_with_error(
                decision.state, error, decision.cause, attempt, upstream_event=event
            )
            return
        answer = error_answer(error)
        if failure.head is not None and decision.cause != OUTCOME_UNKNOWN:
            answer = Answer(failure.head, failure.body)
        await self._end(decision.state, answer, decision.cause, attempt)

    async def end_with_error(
        self,
        state: State,
        error: GatewayError,
        cause: str,
        attempt: Attempt | None = None,
        *,
        upstream_event: bytes = b"",
    ) -> None:
        """An answer that says what went wrong; the last event of a stream that has begun.

        There an event of the upstream's comes first: clients show the first error they meet.
        """
        if self._execution.head is None:
            await self._end(state, error_answer(error), cause, attempt)
            return
        event = upstream_event + error_event(error, after=upstream_event or self._execution.tail)
        await self._recorder.finish(
            state,
            self._execution.head,
            event,
            cause=cause,
            attempt=attempt,
            request=self._request_to_keep(state),
        )
        self._execution.append(event)
        self._execution.complete(state)
        self._announce(state, cause, attempt)

    async def _end(self, state: State, answer: Answer, cause: str, attempt: Attempt | None) -> None:
        await self._recorder.finish(
            state,
            answer.head,
            answer.body,
            cause=cause,
            attempt=attempt,
            request=self._request_to_keep(state),
        )
        self._execution.complete(state, answer)
        self._announce(state, cause, attempt)

    def _request_to_keep(self, state: State) -> bytes | None:
        if state is not State.DEAD:
            return None
        request = self._assignment.request
        return msgspec.msgpack.encode(
            StoredRequest(
                method=request.method,
                path_and_query=request.path_and_query,
                headers=without_secrets(request.headers),
                body=request.body,
                key=self._assignment.key,
            )
        )

    def _announce(self, state: State, cause: str, attempt: Attempt | None) -> None:
        if state is not State.DEAD or not self._assignment.digest:
            return
        self._parts.metrics.dead_letters.labels(self._assignment.route.service).inc()
        self._parts.notices.send(
            DeadLetterNotice(
                digest=self._assignment.digest,
                service=self._assignment.route.service,
                operation=f"{self._assignment.request.method} "
                f"{self._assignment.request.path_and_query.partition('?')[0]}",
                cause=cause,
                num_tries=attempt.number if attempt else 0,
            )
        )
