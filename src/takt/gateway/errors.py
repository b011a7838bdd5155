"""The gateway's own answers, in the shape OpenAI's clients expect."""

from __future__ import annotations

import msgspec

from takt.errors import TaktError
from takt.gateway.states import OUTCOME_UNKNOWN, Head, State
from takt.gateway.stream_end import event_end


class GatewayError(TaktError):
    """An answer of the gateway's own, with a status and a code that programs can read."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class Answer(msgspec.Struct, frozen=True):
    head: Head
    body: bytes


def error_body(error: GatewayError) -> bytes:
    return msgspec.json.encode(
        {
            "error": {
                "message": str(error),
                "type": "invalid_request_error" if error.status < 500 else "gateway_error",
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_answer(error: GatewayError) -> Answer:
    headers = [("Content-Type", "application/json")]
    if error.retry_after_seconds is not None:
        headers.append(("Retry-After", str(error.retry_after_seconds)))
    if error.code == OUTCOME_UNKNOWN:
        # OpenAI's clients would otherwise send the same request again, to get the same answer.
        headers.append(("X-Should-Retry", "false"))
    return Answer(Head(error.status, headers), error_body(error))


def error_event(error: GatewayError, *, after: bytes) -> bytes:
    """As a server-sent event, for a stream that has begun; `after` is the end of what came. An
    event that was left open is ended first."""
    return event_end(after) + b"data: " + error_body(error) + b"\n\n"


def failure_error(state: State, cause: str, kind: str) -> GatewayError:
    """What a client is told when its request failed and the upstream gave no answer of its own."""
    if cause == OUTCOME_UNKNOWN:
        return GatewayError(
            502,
            OUTCOME_UNKNOWN,
            "The upstream got this request and gave no answer; whether it was executed is not "
            "known, and it is not sent again. Use another key to have it executed anew.",
        )
    status = 504 if kind == "timeout" or cause == "deadline" else 502
    if state is State.DEAD:
        return GatewayError(
            status, "dead_letter", f"Every try failed, the last with: {cause}. The request is kept."
        )
    if state is State.FAILED_RETRYABLE:
        return GatewayError(
            503 if status == 502 else status,
            State.FAILED_RETRYABLE.value,
            f"The request failed and may be sent again with the same key: {cause}",
            retry_after_seconds=1,
        )
    return GatewayError(status, State.FAILED_FINAL.value, f"The request failed: {cause}")


def store_unavailable() -> GatewayError:
    return GatewayError(
        503,
        "store_unavailable",
        "The store of idempotency keys does not answer; nothing was executed for this request.",
        retry_after_seconds=1,
    )


def store_lost(status: int = 503) -> GatewayError:
    return GatewayError(
        status,
        "store_unavailable",
        "The answer could not be recorded, so it is not given; ask again with the same key.",
        retry_after_seconds=1,
    )


def stream_lost() -> GatewayError:
    return GatewayError(
        502,
        "stream_lost",
        "The answer that this stream began cannot be continued; ask again with the same key.",
    )


def internal_error() -> GatewayError:
    return GatewayError(500, "internal_error", "The gateway had an error of its own.")


def draining() -> GatewayError:
    return GatewayError(503, "draining", "This gateway is stopping.", retry_after_seconds=1)


def too_large(limit_bytes: int) -> GatewayError:
    return GatewayError(
        502,
        "response_too_large",
        f"The upstream's answer is longer than the {limit_bytes} bytes that may be kept "
        "(--max-response-bytes).",
    )
