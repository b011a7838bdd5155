"""Errors as OpenAI's clients expect them: a status and one JSON shape, on every route."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from takt.errors import EngineDeadError, InvalidRequestError, OverloadedError, TaktError

MAX_MESSAGE_CHARS = 1000
"""Of an error's message: what a client sent, such as a number of 4,000 digits, may be in it."""


class HttpError(TaktError):
    """An error with a status of its own, such as a wrong key or an unknown model."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.details = details


class TooLateError(Exception):
    """The client has gone; there is nobody to answer."""


def to_http_error(error: Exception) -> HttpError:
    """Any error as one with a status; what we did not raise on purpose keeps its text to itself."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InvalidRequestError):
        return HttpError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, OverloadedError):
        return HttpError(
            429,
            str(error),
            type="rate_limit_error",
            code=error.code,
            headers={"Retry-After": str(error.retry_after_seconds)},
            details=error.details,
        )
    if isinstance(error, EngineDeadError):
        return unavailable(str(error))
    return HttpError(500, "The server had an error of its own.", type="server_error")


def unavailable(message: str, retry_after_seconds: int = 1) -> HttpError:
    return HttpError(
        503,
        message,
        type="service_unavailable_error",
        code="service_unavailable",
        headers={"Retry-After": str(retry_after_seconds)},
    )


def error_body(error: HttpError) -> bytes:
    message = str(error)
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 3] + "..."
    content: dict[str, object] = {
        "message": message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if error.details is not None:
        content["details"] = error.details
    return msgspec.json.encode({"error": content})


def error_response(error: HttpError) -> Response:
    return Response(
        error_body(error),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )
