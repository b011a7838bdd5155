"""Tracing through OpenTelemetry. Spans hold names, numbers and states: no body and no header."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from takt.gateway.states import State
from takt.gateway.tracing import AttemptSpan, RequestSpan

_propagator = TraceContextTextMapPropagator()


class OtelTracing:
    """Sends spans to an OTLP collector over HTTP, or to an exporter that is given."""

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "takt-gateway"}))
        chosen = exporter or OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(chosen))
        self._tracer = self._provider.get_tracer("takt.gateway")

    def request(self, service: str, operation: str, headers: Mapping[str, str]) -> RequestSpan:
        parent = _propagator.extract({name.lower(): value for name, value in headers.items()})
        span = self._tracer.start_span(
            f"gateway {operation}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"takt.service": service, "takt.operation": operation},
        )
        return _OtelRequest(self._tracer, span)

    def close(self) -> None:
        self._provider.shutdown()


class _OtelRequest:
    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context: Context = trace.set_span_in_context(span)

    def attempt(self, number: int, upstream: str) -> AttemptSpan:
        span = self._tracer.start_span(
            "gateway attempt",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={"retry_attempt": number, "server.address": upstream},
        )
        return _OtelAttempt(span)

    def end(self, state: State, status: int, *, is_duplicate: bool) -> None:
        self._span.set_attribute("idempotency.state", state.value)
        self._span.set_attribute("idempotency.duplicate", is_duplicate)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _OtelAttempt:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, context=trace.set_span_in_context(self._span))
        return carrier

    def end(self, *, cause: str, status: int | None, is_final: bool) -> None:
        self._span.set_attribute("is_final", is_final)
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if cause:
            self._span.set_status(Status(StatusCode.ERROR, cause))
        self._span.end()
