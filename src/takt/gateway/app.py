"""The gateway's HTTP application: its own routes, and everything else to the handler."""

from __future__ import annotations

import hmac

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from takt.gateway.errors import GatewayError
from takt.gateway.handler import Handler
from takt.gateway.parts import Parts
from takt.gateway.responder import write_error
from takt.gateway.upstream import Upstream

HEADER_BYTES = 32_768


def build_app(parts: Parts, handler: Handler) -> web.Application:
    own = _OwnRoutes(parts, handler)
    app = web.Application()
    app.router.add_get("/health", own.health)
    app.router.add_get("/metrics", own.metrics)
    if parts.options.admin_key is not None:
        app.router.add_post("/gateway/drain", own.drain)
        app.router.add_post("/gateway/resume", own.resume)
    app.router.add_route("*", "/{path:.*}", handler.handle)
    return app


class _OwnRoutes:
    def __init__(self, parts: Parts, handler: Handler) -> None:
        self._parts = parts
        self._handler = handler

    async def health(self, request: web.Request) -> web.Response:
        """200 while a request could be served: a store that answers, an upstream that is there."""
        is_up = self._parts.keeper.is_store_up
        num_serving = self._parts.router.num_serving
        is_healthy = is_up and num_serving > 0 and not self._handler.is_draining
        return web.Response(
            status=200 if is_healthy else 503,
            content_type="application/json",
            body=msgspec.json.encode(
                {
                    "status": "ok" if is_healthy else "unavailable",
                    "store": "up" if is_up else "down",
                    "upstreams_serving": num_serving,
                    "upstreams": len(self._parts.router.upstreams),
                    "draining": self._handler.is_draining,
                }
            ),
        )

    async def metrics(self, request: web.Request) -> web.Response:
        self._parts.metrics.in_flight.set(self._handler.num_in_flight)
        body = generate_latest(self._parts.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def drain(self, request: web.Request) -> web.Response:
        """No new requests for `?upstream=URL`; what runs there may end."""
        return self._set_draining(request, True)

    async def resume(self, request: web.Request) -> web.Response:
        return self._set_draining(request, False)

    def _set_draining(self, request: web.Request, is_draining: bool) -> web.Response:
        error = self._check_key(request)
        if error is not None:
            return write_error(error)
        upstream = self._upstream(request)
        if upstream is None:
            known = ", ".join(self._parts.router.upstreams)
            return write_error(
                GatewayError(404, "no_such_upstream", f"?upstream= must be one of: {known}")
            )
        upstream.is_draining = is_draining
        return web.json_response({"upstream": upstream.url, "draining": is_draining})

    def _upstream(self, request: web.Request) -> Upstream | None:
        return self._parts.router.upstreams.get(request.query.get("upstream", "").rstrip("/"))

    def _check_key(self, request: web.Request) -> GatewayError | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        expected = (self._parts.options.admin_key or "").encode()
        if hmac.compare_digest(given, expected):
            return None
        return GatewayError(401, "invalid_admin_key", "The admin key is missing or wrong.")
