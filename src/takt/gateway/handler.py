"""A client's request, from its head to the last of its answer."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from takt.errors import InvalidRequestError
from takt.gateway.assignment import Assignment
from takt.gateway.attempt import OutgoingRequest
from takt.gateway.errors import GatewayError, draining, internal_error
from takt.gateway.execution import Execution
from takt.gateway.gateway import SAFE_METHODS, Gateway
from takt.gateway.headers import DEADLINE_HEADER, to_upstream
from takt.gateway.http.decoding import BadEncodingError, Decoder, encoding_to_undo
from takt.gateway.http.exchange import Exchange
from takt.gateway.http.request_reader import body_too_large
from takt.gateway.keys import CREDENTIAL_HEADERS, RequestKey, Tenants, request_key
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

MAX_DEADLINE_MS = 86_400_000
_MAX_DEADLINE_DIGITS = len(str(MAX_DEADLINE_MS))


class Progress(msgspec.Struct):
    """What is known of a request from its head to the end of its span."""

    route: Route
    tenant: str
    begin_ns: int
    deadline_ns: int
    status: int = 499
    is_duplicate: bool = False
    execution: Execution | None = None


class Handler:
    """Every path that is not the gateway's own."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._parts = gateway.parts
        self._options = gateway.parts.options
        self._key_rules = self._options.key_rules
        self._tenants = Tenants(self._key_rules)
        rules = self._key_rules
        self._names = [
            name
            for name in (
                *(KEY_HEADER, *CREDENTIAL_HEADERS),
                *(rules.tenant_header, rules.business_id_header),
            )
            if name is not None
        ]
        """Headers that say whose request it is, and which: an upstream may read another than we."""
        self._limiter = RateLimiter(self._options.rate_limit, self._parts.clock)
        self._admitted: dict[Exchange, Progress] = {}
        self.is_draining = False

    @property
    def num_in_flight(self) -> int:
        return len(self._admitted)

    def admit(self, exchange: Exchange) -> None:
        """A place among those in flight, before the body is read. Raises `GatewayError`."""
        try:
            self._admitted[exchange] = self._look(exchange)
        except InvalidRequestError as error:
            raise _bad_request(error) from None

    def dismiss(self, exchange: Exchange) -> None:
        """The body of an admitted request never came."""
        self._leave(exchange, self._admitted[exchange])

    async def handle(self, exchange: Exchange) -> None:
        """Answers an admitted request, whatever happens; nobody is told once its client is gone."""
        progress = self._admitted[exchange]
        try:
            await self._answer(exchange, progress)
        except InvalidRequestError as error:
            self._reject(exchange, _bad_request(error))
        except GatewayError as error:
            self._reject(exchange, error)
        except Exception:
            logger.exception("a request failed here")
            self._reject(exchange, internal_error())
        finally:
            self._leave(exchange, progress)

    def _look(self, exchange: Exchange) -> Progress:
        if self.is_draining:
            raise draining()
        if self.num_in_flight >= self._options.max_in_flight:
            raise GatewayError(
                429,
                "too_many_requests",
                f"{self.num_in_flight} requests are in flight, the most there may be.",
                retry_after_seconds=1,
            )
        for name in self._names:
            if exchange.headers.count(name) > 1:
                raise InvalidRequestError(f"a request must have no more than one {name}")
        tenant = self._tenants.of(exchange.headers)
        wait = self._limiter.retry_after_seconds(tenant)
        if wait is not None:
            raise GatewayError(
                429,
                "rate_limit_exceeded",
                f"More than {self._options.rate_limit:g} requests a second.",
                retry_after_seconds=max(1, round(wait)),
            )
        if not (exchange.target.startswith("/") and exchange.target.isascii()):
            # Of a proxy's form, `GET http://host/`, or `*`, it names no path of an upstream.
            raise InvalidRequestError("the request's target must be ASCII and begin with /")
        route = self._parts.policy.route_of(exchange.path)
        begin_ns = self._parts.clock.now_ns()
        deadline_ns = begin_ns + _allowed_ms(exchange, route) * NS_PER_MS
        return Progress(route, tenant, begin_ns, deadline_ns)

    def _leave(self, exchange: Exchange, progress: Progress) -> None:
        del self._admitted[exchange]
        elapsed = (self._parts.clock.now_ns() - progress.begin_ns) / NS_PER_SECOND
        self._parts.metrics.observe_request(progress.route.service, elapsed)

    def refused(self, error: GatewayError) -> None:
        self._parts.metrics.rejected.labels(error.code).inc()

    def _reject(self, exchange: Exchange, error: GatewayError) -> None:
        self.refused(error)
        if not exchange.is_begun:
            write_error(exchange, error)

    async def _answer(self, exchange: Exchange, progress: Progress) -> None:
        span = self._parts.tracing.request(
            progress.route.service, f"{exchange.method} {exchange.path}", exchange.headers
        )
        try:
            progress.status = await self._execute(exchange, progress, span)
        except GatewayError as error:
            progress.status = error.status
            raise
        finally:
            execution = progress.execution
            state = State.ABSENT if execution is None else execution.state
            span.end(state, progress.status, is_duplicate=progress.is_duplicate)

    async def _execute(self, exchange: Exchange, progress: Progress, span: RequestSpan) -> int:
        """The status of the answer that was written."""
        route = progress.route
        body = self._decoded_body(exchange)
        key = self._key(exchange, progress, body)
        assignment = Assignment(
            route=route,
            request=OutgoingRequest(
                exchange.method, exchange.target, to_upstream(exchange.headers), body
            ),
            key="" if key is None else key.forwarded,
            digest="" if key is None else key.identity.digest,
            deadline_ns=progress.deadline_ns,
            may_repeat=self._parts.on_unknown(route) is OnUnknown.RETRY,
        )
        if key is not None:
            return await self._execute_with_key(exchange, key, assignment, span, progress)
        execution = progress.execution = self._gateway.start_without_key(assignment, span)
        try:
            return await self._respond(exchange, execution, progress)
        finally:
            if execution.on_abandoned is not None:
                execution.on_abandoned()

    async def _execute_with_key(
        self,
        exchange: Exchange,
        key: RequestKey,
        assignment: Assignment,
        span: RequestSpan,
        progress: Progress,
    ) -> int:
        for _ in range(MAX_LOST):
            exchange.is_claiming = True
            found = await self._gateway.find(key, assignment, span)
            exchange.is_claiming = False
            if not exchange.has_client:
                raise asyncio.CancelledError
            progress.execution = found.execution
            progress.is_duplicate = found.is_duplicate
            try:
                status = await self._respond(exchange, found.execution, progress)
            except LostBeforeAnswerError:
                await asyncio.sleep(LOST_WAIT_SECONDS)
                continue
            if found.is_duplicate:
                self._parts.metrics.count_request(assignment.route.service, "duplicate")
            return status
        raise GatewayError(
            503, "record_contended", "The record changes hands too often.", retry_after_seconds=1
        )

    async def _respond(self, exchange: Exchange, execution: Execution, progress: Progress) -> int:
        return await respond(
            exchange,
            execution,
            is_duplicate=progress.is_duplicate,
            deadline_ns=progress.deadline_ns,
            clock=self._parts.clock,
        )

    def _key(self, exchange: Exchange, progress: Progress, body: bytes) -> RequestKey | None:
        if exchange.method in SAFE_METHODS:
            return None
        key = request_key(
            method=exchange.method,
            path=exchange.path,
            query=exchange.query,
            headers=exchange.headers,
            body=body,
            service=progress.route.service,
            tenant=progress.tenant,
            rules=self._key_rules,
            secret=self._parts.sealer.secret,
        )
        if key is None and self._options.require_key:
            raise InvalidRequestError(
                f"this gateway needs a key: send the header {KEY_HEADER}",
                param=KEY_HEADER,
                code="idempotency_key_missing",
            )
        return key

    def _decoded_body(self, exchange: Exchange) -> bytes:
        """Readable, whatever its encoding: a body means the same compressed and not."""
        if exchange.headers.count("content-encoding") > 1:
            raise InvalidRequestError("a request must have no more than one Content-Encoding")
        encoding = encoding_to_undo(exchange.headers)
        if encoding is None:
            return exchange.body
        limit = self._options.max_request_bytes
        decoder = Decoder(encoding)
        pieces: list[bytes] = []
        num_bytes = 0
        try:
            for piece in decoder.feed(exchange.body):
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > limit:
                    raise body_too_large(limit)
            decoder.end()
        except BadEncodingError as error:
            raise InvalidRequestError(f"the body is not {encoding}: {error}") from None
        return b"".join(pieces)


def _allowed_ms(exchange: Exchange, route: Route) -> int:
    """Time for the whole request: the route's, or the caller's if that is shorter."""
    given = exchange.headers.get(DEADLINE_HEADER)
    if given is None:
        return route.retry.deadline_ms
    is_number = given.isascii() and given.isdigit() and len(given) <= _MAX_DEADLINE_DIGITS
    if not (is_number and 0 < int(given) <= MAX_DEADLINE_MS):
        raise InvalidRequestError(
            f"{DEADLINE_HEADER} must be 1 to {MAX_DEADLINE_MS} milliseconds, got {given[:32]!r}",
            param=DEADLINE_HEADER,
        )
    return min(route.retry.deadline_ms, int(given))


def _bad_request(error: InvalidRequestError) -> GatewayError:
    return GatewayError(400, error.code or "invalid_request", str(error), param=error.param)
