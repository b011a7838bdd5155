"""The gateway's HTTP application: its own routes, and everything else to the handler."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from urllib.parse import parse_qs

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from takt.gateway.errors import Answer, GatewayError, error_answer
from takt.gateway.handler import Handler
from takt.gateway.http.exchange import Exchange
from takt.gateway.parts import Parts
from takt.gateway.responder import write_answer
from takt.gateway.states import Head
from takt.gateway.upstream import Upstream

Own = Callable[[Exchange], Answer]


class GatewayApplication:
    """What an `HttpServer` serves."""

    def __init__(self, parts: Parts, handler: Handler) -> None:
        self.max_body_bytes = parts.options.max_request_bytes
        self._handler = handler
        self._own = _OwnRoutes(parts, handler).routes()

    def admit(self, exchange: Exchange) -> None:
        if (exchange.method, exchange.path) not in self._own:
            self._handler.admit(exchange)

    async def handle(self, exchange: Exchange) -> None:
        own = self._own.get((exchange.method, exchange.path))
        if own is None:
            await self._handler.handle(exchange)
        else:
            write_answer(exchange, own(exchange))

    def dismiss(self, exchange: Exchange) -> None:
        if (exchange.method, exchange.path) not in self._own:
            self._handler.dismiss(exchange)

    def refused(self, error: GatewayError) -> None:
        self._handler.refused(error)


class _OwnRoutes:
    def __init__(self, parts: Parts, handler: Handler) -> None:
        self._parts = parts
        self._handler = handler

    def routes(self) -> dict[tuple[str, str], Own]:
        """Methods and paths that are the gateway's own; everything else is passed on."""
        routes: dict[tuple[str, str], Own] = {
            (method, path): answer
            for method in ("GET", "HEAD")
            for path, answer in (("/health", self.health), ("/metrics", self.metrics))
        }
        if self._parts.options.admin_key is not None:
            routes["POST", "/gateway/drain"] = self.drain
            routes["POST", "/gateway/resume"] = self.resume
        return routes

    def health(self, exchange: Exchange) -> Answer:
        """200 while a request could be served: a store that answers, an upstream that is there."""
        is_up = self._parts.keeper.is_store_up
        num_serving = self._parts.router.num_serving
        is_healthy = is_up and num_serving > 0 and not self._handler.is_draining
        return _json(
            200 if is_healthy else 503,
            {
                "status": "ok" if is_healthy else "unavailable",
                "store": "up" if is_up else "down",
                "upstreams_serving": num_serving,
                "upstreams": len(self._parts.router.upstreams),
                "draining": self._handler.is_draining,
            },
        )

    def metrics(self, exchange: Exchange) -> Answer:
        self._parts.metrics.in_flight.set(self._handler.num_in_flight)
        body = generate_latest(self._parts.metrics.registry)
        return Answer(Head(200, [("Content-Type", CONTENT_TYPE_LATEST)]), body)

    def drain(self, exchange: Exchange) -> Answer:
        """No new requests for `?upstream=URL`; what runs there may end."""
        return self._set_draining(exchange, True)

    def resume(self, exchange: Exchange) -> Answer:
        return self._set_draining(exchange, False)

    def _set_draining(self, exchange: Exchange, is_draining: bool) -> Answer:
        error = self._check_key(exchange)
        if error is not None:
            return error_answer(error)
        upstream = self._upstream(exchange)
        if upstream is None:
            known = ", ".join(self._parts.router.upstreams)
            return error_answer(
                GatewayError(404, "no_such_upstream", f"?upstream= must be one of: {known}")
            )
        upstream.is_draining = is_draining
        return _json(200, {"upstream": upstream.url, "draining": is_draining})

    def _upstream(self, exchange: Exchange) -> Upstream | None:
        given = parse_qs(exchange.query, errors="replace").get("upstream", [""])[0]
        return self._parts.router.upstreams.get(given.rstrip("/"))

    def _check_key(self, exchange: Exchange) -> GatewayError | None:
        given = exchange.headers.get("Authorization", "").removeprefix("Bearer ")
        expected = (self._parts.options.admin_key or "").encode()
        if hmac.compare_digest(given.encode(errors="replace"), expected):
            return None
        return GatewayError(401, "invalid_admin_key", "The admin key is missing or wrong.")


def _json(status: int, value: dict[str, object]) -> Answer:
    return Answer(Head(status, [("Content-Type", "application/json")]), msgspec.json.encode(value))
