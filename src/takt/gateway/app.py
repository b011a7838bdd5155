"""The gateway's HTTP application: its own routes, and everything else to the handler."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from takt.gateway.errors import GatewayError
from takt.gateway.handler import Handler
from takt.gateway.parts import Parts
from takt.gateway.responder import write_error
from takt.gateway.upstream import Upstream

HEADER_BYTES = 32_768


Own = Callable[[web.BaseRequest], web.Response]


def build_server(parts: Parts, handler: Handler, **settings: Any) -> web.Server:
    """aiohttp's server without its router and middleware: one look into a table takes less.

    `settings` are those of `web.Server`.
    """
    own = _OwnRoutes(parts, handler).routes()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if "Expect" in request.headers:
            await _continue(request)
        found = own.get((request.method, request.path))
        return await handler.handle(request) if found is None else found(request)

    return web.Server(
        answer,
        access_log=None,
        logger=_http_logger(),
        handler_cancellation=True,
        max_line_size=HEADER_BYTES,
        max_field_size=HEADER_BYTES,
        **settings,
    )


def _http_logger() -> logging.Logger:
    """What goes wrong below the handler, without requests that are no HTTP: a client's mistake, and
    the library would show a piece of the header, which may hold a credential."""
    logger = logging.getLogger("takt.gateway.http")
    logger.addFilter(_is_our_concern)
    return logger


def _is_our_concern(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


async def _continue(request: web.BaseRequest) -> None:
    """A client that asked whether to send its body waits for this; curl does with long ones."""
    if request.headers["Expect"].lower() == "100-continue" and request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # That was no part of the answer.
        request.writer.output_size = 0


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

    def health(self, request: web.BaseRequest) -> web.Response:
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

    def metrics(self, request: web.BaseRequest) -> web.Response:
        self._parts.metrics.in_flight.set(self._handler.num_in_flight)
        body = generate_latest(self._parts.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def drain(self, request: web.BaseRequest) -> web.Response:
        """No new requests for `?upstream=URL`; what runs there may end."""
        return self._set_draining(request, True)

    def resume(self, request: web.BaseRequest) -> web.Response:
        return self._set_draining(request, False)

    def _set_draining(self, request: web.BaseRequest, is_draining: bool) -> web.Response:
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

    def _upstream(self, request: web.BaseRequest) -> Upstream | None:
        return self._parts.router.upstreams.get(request.query.get("upstream", "").rstrip("/"))

    def _check_key(self, request: web.BaseRequest) -> GatewayError | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        expected = (self._parts.options.admin_key or "").encode()
        if hmac.compare_digest(given.encode(errors="replace"), expected):
            return None
        return GatewayError(401, "invalid_admin_key", "The admin key is missing or wrong.")
