"""The HTTP application: routes, and what stands in front of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from takt.errors import OverloadedError, TaktError
from takt.server import info
from takt.server.chat_completions import create_chat_completion
from takt.server.completions import create_completion
from takt.server.errors import HttpError, TooLateError, error_response, to_http_error
from takt.server.generate import generate
from takt.server.idempotency import Idempotency
from takt.server.middleware import BearerAuth, RequestLog
from takt.server.state import ServerState

Handler = Callable[[Request, ServerState], Awaitable[ASGIApp]]

CLIENT_CLOSED_REQUEST = 499

_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/completions", create_completion),
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("GET", "/v1/models", info.list_models),
    ("GET", "/v1/models/{model:path}", info.show_model),
    ("POST", "/tokenize", info.tokenize),
    ("POST", "/detokenize", info.detokenize),
    ("POST", "/generate", generate),
    ("GET", "/health", info.health),
    ("GET", "/ping", info.health),
    ("POST", "/ping", info.health),
    ("GET", "/version", info.version),
    ("GET", "/info", info.show_engine),
    ("GET", "/metrics", info.metrics),
    ("GET", "/slo", info.slo),
)


def build_app(state: ServerState) -> ASGIApp:
    """The application of one server; `state` may become ready later."""
    middleware = [Middleware(RequestLog, state=state)]
    if state.options.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(state.options.allowed_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Idempotency-Replayed"],
            )
        )
    if state.options.api_key:
        middleware.append(Middleware(BearerAuth, keys=state.options.api_key))
    middleware.append(Middleware(Idempotency, state=state))
    return Starlette(
        routes=[_route(method, path, handler, state) for method, path, handler in _ROUTES],
        middleware=middleware,
        exception_handlers={
            TaktError: _takt_error_handler(state),
            TooLateError: _on_too_late,
            HTTPException: _on_http_exception,
        },
    )


def _route(method: str, path: str, handler: Handler, state: ServerState) -> Route:
    async def endpoint(request: Request) -> ASGIApp:
        return await handler(request, state)

    return Route(path, endpoint, methods=[method])


def _takt_error_handler(
    state: ServerState,
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def on_takt_error(request: Request, error: Exception) -> Response:
        if isinstance(error, OverloadedError):
            state.metrics.observe_refusal(error.code)
        return error_response(to_http_error(error))

    return on_takt_error


async def _on_too_late(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or a method that the route does not have."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(info.not_found(request.url.path))
    return error_response(
        HttpError(
            error.status_code,
            f"{request.method} is not allowed here"
            if error.status_code == 405
            else str(error.detail),
            headers=dict(error.headers or {}),
        )
    )
