"""Spans of requests and attempts, through OpenTelemetry where it is installed and asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from takt.gateway.states import State


class AttemptSpan(Protocol):
    def headers(self) -> dict[str, str]:
        """What carries the trace on to the upstream."""
        ...

    def end(self, *, cause: str, status: int | None, is_final: bool) -> None:
        """`cause` is empty for a success; `is_final` if no attempt follows."""
        ...


class RequestSpan(Protocol):
    def attempt(self, number: int, upstream: str) -> AttemptSpan: ...

    def end(self, state: State, status: int, *, is_duplicate: bool) -> None: ...


class Tracing(Protocol):
    def request(self, service: str, operation: str, headers: Mapping[str, str]) -> RequestSpan:
        """A span under the one that the client's headers name, if they do."""
        ...

    def close(self) -> None:
        """Sends what is still held."""
        ...


class NoAttemptSpan:
    def headers(self) -> dict[str, str]:
        return {}

    def end(self, *, cause: str, status: int | None, is_final: bool) -> None:
        return


class NoRequestSpan:
    def attempt(self, number: int, upstream: str) -> AttemptSpan:
        return NoAttemptSpan()

    def end(self, state: State, status: int, *, is_duplicate: bool) -> None:
        return


class NoTracing:
    """Passes the client's own trace context on, and adds nothing."""

    def request(self, service: str, operation: str, headers: Mapping[str, str]) -> RequestSpan:
        context = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        return _PassingSpan(context) if context else NoRequestSpan()

    def close(self) -> None:
        return


class _PassingSpan(NoRequestSpan):
    def __init__(self, context: dict[str, str]) -> None:
        self._context = context

    def attempt(self, number: int, upstream: str) -> AttemptSpan:
        return _PassingAttempt(self._context)


class _PassingAttempt(NoAttemptSpan):
    def __init__(self, context: dict[str, str]) -> None:
        self._context = context

    def headers(self) -> dict[str, str]:
        return self._context
