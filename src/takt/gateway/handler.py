"""A client's request, from its first byte to the last of its answer."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from aiohttp import StreamReader, web

from takt.errors import InvalidRequestError
from takt.gateway.assignment import Assignment
from takt.gateway.attempt import OutgoingRequest
from takt.gateway.errors import GatewayError, draining, internal_error
from takt.gateway.execution import Execution
from takt.gateway.gateway import SAFE_METHODS, Gateway
from takt.gateway.headers import DEADLINE_HEADER, to_upstream
from takt.gateway.keys import RequestKey, request_key, tenant_of
from takt.gateway.policy import Route
from takt.gateway.rate_limit import RateLimiter
from takt.gateway.responder import LostBeforeAnswerError, respond, write_error
from takt.gateway.states import OnUnknown, State
from takt.gateway.tracing import RequestSpan
from takt.idempotency import KEY_HEADER

logger = logging.getLogger("takt.gateway")

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000

LOST_WAIT_SECONDS = 0.05
MAX_LOST = 100
"""Looks at a record that changes hands; each is one lease of another gateway that ended."""

BODY_IDLE_SECONDS = 30.0
"""A client that stops in the middle of its request would keep a place among those in flight."""

MAX_DEADLINE_MS = 86_400_000
_MAX_DEADLINE_DIGITS = len(str(MAX_DEADLINE_MS))


@dataclass(slots=True)
class Progress:
    """What is known of a request when its span ends."""

    status: int = 499
    is_duplicate: bool = False
    execution: Execution | None = None


class Handler:
    """Every path that is not the gateway's own."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._parts = gateway.parts
        self._options = gateway.parts.options
        self._limiter = RateLimiter(self._options.rate_limit, self._parts.clock)
        self.num_in_flight = 0
        self.is_draining = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers, whatever happens; only a client that went away raises."""
        if self.is_draining:
            return self._reject(draining())
        if self.num_in_flight >= self._options.max_in_flight:
            return self._reject(
                GatewayError(
                    429,
                    "too_many_requests",
                    f"{self.num_in_flight} requests are in flight, the most there may be.",
                    retry_after_seconds=1,
                )
            )
        self.num_in_flight += 1
        begin_ns = self._parts.clock.now_ns()
        route = self._parts.policy.route_of(request.path)
        try:
            return await self._answer(request, route)
        except InvalidRequestError as error:
            code = error.code or "invalid_request"
            return self._reject(GatewayError(400, code, str(error), param=error.param))
        except GatewayError as error:
            return self._reject(error)
        except (ConnectionError, TimeoutError):
            # The client is gone, or reads nothing: there is nobody to tell.
            raise
        except Exception:
            logger.exception("a request failed here")
            return self._reject(internal_error())
        finally:
            self.num_in_flight -= 1
            elapsed = (self._parts.clock.now_ns() - begin_ns) / NS_PER_SECOND
            self._parts.metrics.observe_request(route.service, elapsed)

    def _reject(self, error: GatewayError) -> web.Response:
        self._parts.metrics.rejected.labels(error.code).inc()
        return write_error(error)

    async def _answer(self, request: web.BaseRequest, route: Route) -> web.StreamResponse:
        tenant = tenant_of(request.headers, self._options.key_rules)
        wait = self._limiter.retry_after_seconds(tenant)
        if wait is not None:
            raise GatewayError(
                429,
                "rate_limit_exceeded",
                f"More than {self._options.rate_limit:g} requests a second.",
                retry_after_seconds=max(1, round(wait)),
            )
        target = request.raw_path
        if not (target.startswith("/") and target.isascii()):
            # Of a proxy's form, `GET http://host/`, or `*`, it names no path of an upstream.
            raise InvalidRequestError("the request's target must be ASCII and begin with /")
        deadline_ns = self._deadline_ns(request, route)
        body = await self._read_body(request)
        span = self._parts.tracing.request(
            route.service, f"{request.method} {request.path}", request.headers
        )
        progress = Progress()
        try:
            response = await self._execute(
                request, route, tenant, body, deadline_ns, span, progress
            )
            progress.status = response.status
            return response
        except GatewayError as error:
            progress.status = error.status
            raise
        finally:
            state = State.ABSENT if progress.execution is None else progress.execution.state
            span.end(state, progress.status, is_duplicate=progress.is_duplicate)

    async def _execute(
        self,
        request: web.BaseRequest,
        route: Route,
        tenant: str,
        body: bytes,
        deadline_ns: int,
        span: RequestSpan,
        progress: Progress,
    ) -> web.StreamResponse:
        key = self._key(request, route, tenant, body)
        assignment = Assignment(
            route=route,
            request=OutgoingRequest(
                request.method,
                request.raw_path,
                to_upstream(request.headers.items(), request.headers.get("Connection", "")),
                body,
            ),
            key="" if key is None else key.forwarded,
            digest="" if key is None else key.identity.digest,
            deadline_ns=deadline_ns,
            may_repeat=self._parts.on_unknown(route) is OnUnknown.RETRY,
        )
        if key is None:
            execution = progress.execution = self._gateway.start_without_key(assignment, span)
            try:
                return await self._respond(request, execution, False, deadline_ns)
            finally:
                if execution.on_abandoned is not None:
                    execution.on_abandoned()
        return await self._execute_with_key(request, key, assignment, span, progress)

    async def _execute_with_key(
        self,
        request: web.BaseRequest,
        key: RequestKey,
        assignment: Assignment,
        span: RequestSpan,
        progress: Progress,
    ) -> web.StreamResponse:
        for _ in range(MAX_LOST):
            found = await self._gateway.find(key, assignment, span)
            progress.execution = found.execution
            progress.is_duplicate = found.is_duplicate
            try:
                response = await self._respond(
                    request, found.execution, found.is_duplicate, assignment.deadline_ns
                )
            except LostBeforeAnswerError:
                await asyncio.sleep(LOST_WAIT_SECONDS)
                continue
            if found.is_duplicate:
                service = assignment.route.service
                self._parts.metrics.count_request(service, "duplicate")
            return response
        raise GatewayError(
            503, "record_contended", "The record changes hands too often.", retry_after_seconds=1
        )

    async def _respond(
        self,
        request: web.BaseRequest,
        execution: Execution,
        is_duplicate: bool,
        deadline_ns: int,
    ) -> web.StreamResponse:
        return await respond(
            request,
            execution,
            is_duplicate=is_duplicate,
            deadline_ns=deadline_ns,
            clock=self._parts.clock,
        )

    def _key(
        self, request: web.BaseRequest, route: Route, tenant: str, body: bytes
    ) -> RequestKey | None:
        if request.method in SAFE_METHODS:
            return None
        key = request_key(
            method=request.method,
            path=request.path,
            query=request.query_string,
            headers=request.headers,
            body=body,
            service=route.service,
            tenant=tenant,
            rules=self._options.key_rules,
            secret=self._parts.sealer.secret,
        )
        if key is None and self._options.require_key:
            raise InvalidRequestError(
                f"this gateway needs a key: send the header {KEY_HEADER}",
                param=KEY_HEADER,
                code="idempotency_key_missing",
            )
        return key

    def _deadline_ns(self, request: web.BaseRequest, route: Route) -> int:
        allowed_ms = route.retry.deadline_ms
        given = request.headers.get(DEADLINE_HEADER)
        if given is not None:
            is_number = given.isascii() and given.isdigit() and len(given) <= _MAX_DEADLINE_DIGITS
            if not (is_number and 0 < int(given) <= MAX_DEADLINE_MS):
                raise InvalidRequestError(
                    f"{DEADLINE_HEADER} must be 1 to {MAX_DEADLINE_MS} milliseconds, "
                    f"got {given[:32]!r}",
                    param=DEADLINE_HEADER,
                )
            allowed_ms = min(allowed_ms, int(given))
        return self._parts.clock.now_ns() + allowed_ms * NS_PER_MS

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        limit = self._options.max_request_bytes
        if request.content_length is not None and request.content_length > limit:
            raise _body_too_large(limit)
        content = request.content
        if content.is_eof():
            # Most bodies are here as soon as the head is.
            body = content.read_nowait()
            if len(body) > limit:
                raise _body_too_large(limit)
            return body
        pieces: list[bytes] = []
        num_bytes = 0
        while piece := await _next_piece(content):
            num_bytes += len(piece)
            if num_bytes > limit:
                raise _body_too_large(limit)
            pieces.append(piece)
        return b"".join(pieces)


async def _next_piece(content: StreamReader) -> bytes:
    try:
        async with asyncio.timeout(BODY_IDLE_SECONDS):
            return await content.readany()
    except TimeoutError:
        raise GatewayError(
            408, "body_timeout", f"Nothing of the body came for {BODY_IDLE_SECONDS:g} s."
        ) from None


def _body_too_large(limit: int) -> GatewayError:
    return GatewayError(
        413, "body_too_large", f"The body is longer than {limit} bytes (--max-request-bytes)."
    )
