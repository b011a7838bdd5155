"""What every request passes: a count, an id, a key, a line in the log."""

from __future__ import annotations

import hmac
import logging
import re
import uuid
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from takt.server.errors import HttpError, error_response, to_http_error
from takt.server.state import ServerState

access_logger = logging.getLogger("takt.access")
logger = logging.getLogger("takt.server")

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})
"""Answered without a key and while the server drains; probes of them are not logged."""

_PROBES = OPEN_PATHS | {"/slo"}
"""Neither counted nor logged; what is not open still needs a key."""

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestLog:
    """Outermost: counts what is in flight, gives each request an id, and logs its end.

    An error that no handler knows becomes OpenAI's 500 body; its text stays in the log.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._gives_ids = state.options.enable_request_id_headers
        self._logs = not state.options.disable_access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._gives_ids:
                    message["headers"] = [
                        *message.get("headers", []),
                        (b"x-request-id", request_id),
                    ]
            await send(message)

        is_counted = scope["path"] not in _PROBES
        self._state.num_in_flight += is_counted
        begin_ns = self._state.clock.now_ns()
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("request %s failed", request_id.decode())
            if status:
                raise
            await error_response(to_http_error(error))(scope, receive, send_with_id)
        finally:
            self._state.num_in_flight -= is_counted
            if self._logs and is_counted:
                elapsed_ms = (self._state.clock.now_ns() - begin_ns) / 1e6
                _log(scope, status, elapsed_ms, request_id)


class BearerAuth:
    """401 for a request without one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            error = self._check(_header(scope, b"authorization"))
            if error is not None:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, authorization: bytes | None) -> HttpError | None:
        if authorization is None:
            return _unauthorized("no API key was given: send it as Authorization: Bearer KEY")
        scheme, _, key = authorization.partition(b" ")
        # Every key is compared, in constant time each: the time tells nothing about them.
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            return _unauthorized("the API key is wrong")
        return None


def _unauthorized(message: str) -> HttpError:
    return HttpError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _request_id(scope: Scope) -> bytes:
    """The client's id if it is fit for a header and a log line, else one of ours."""
    given = _header(scope, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return b"req-" + uuid.uuid4().hex.encode()


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def _log(scope: Scope, status: int, elapsed_ms: float, request_id: bytes) -> None:
    client = scope.get("client")
    access_logger.info(
        "%s %s %r %d %.1f ms %s",
        client[0] if client else "-",
        scope["method"],
        scope["path"],
        status,
        elapsed_ms,
        request_id.decode(),
    )
