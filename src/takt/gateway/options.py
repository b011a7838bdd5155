"""Every default of the gateway. A field's metadata is its flag's help."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from takt.config import cache_home, check_choices
from takt.errors import ConfigError
from takt.gateway.http.limits import MAX_CONNECTIONS, READ_SECONDS
from takt.gateway.keys import KeyRules
from takt.gateway.policy import MAX_WAIT_MS
from takt.gateway.upstream_url import checked_url

MAX_RATE = 1e9
"""Requests a second."""


def _option(default: Any, help_text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """One gateway."""

    upstream: tuple[str, ...] = _option(
        (), "URL of an OpenAI-compatible server; may be given several times."
    )
    policy: str | None = _option(None, "TOML file of services, routes, retries and upstreams.")
    host: str = _option("127.0.0.1", "Address to listen on.")
    port: int = _option(8080, "Port to listen on; 0 picks a free one and prints it.")
    store: str | None = _option(
        None,
        "sqlite:///PATH, redis://HOST:PORT/DB, rediss:// or unix://; a SQLite file in the cache "
        "directory if not given.",
    )
    store_volatile: bool = _option(
        False, "Accept a Redis that may forget: without append-only file, or one that evicts."
    )
    on_unknown: str = _option(
        "retry",
        "What follows an attempt that was sent and whose outcome is not known: retry, or fail "
        "(never executed twice).",
        choices=("retry", "fail"),
    )
    require_key: bool = _option(False, "Refuse a POST that carries no key.")
    business_id_header: str | None = _option(
        None, "Header whose value is the key of a request without Idempotency-Key."
    )
    business_id_field: str | None = _option(
        None, "Field of the JSON body (a.b.c) that is, likewise."
    )
    tenant_header: str | None = _option(
        None, "Header, set by a trusted proxy, that tells tenants apart instead of Authorization."
    )
    bodies_at_rest: str = _option(
        "plain",
        "plain, encrypted, or off (a duplicate of an ended request then gets 409).",
        choices=("plain", "encrypted", "off"),
    )
    encryption_key_file: str | None = _option(
        None, "File of 32-byte keys in base64, the newest first."
    )
    lease_ms: int = _option(
        10_000, "Time without a sign of life after which another gateway takes a request over."
    )
    max_request_bytes: int = _option(16 * 1024 * 1024, "Largest request body, in bytes.")
    max_response_bytes: int = _option(64 * 1024 * 1024, "Largest answer that is kept, in bytes.")
    max_in_flight: int = _option(4096, "Requests being answered before new ones get 429.")
    max_connections: int = _option(
        MAX_CONNECTIONS, "Connections of clients that are open before new ones get 503."
    )
    read_timeout_seconds: float = _option(
        READ_SECONDS,
        "Time in which a client must read 64 KiB of its answer, or all that is there of it.",
    )
    rate_limit: float = _option(0.0, "Requests a second of each tenant; 0 is no limit.")
    health_interval_ms: int = _option(2_000, "Time between two health checks of an upstream.")
    drain_timeout_seconds: float = _option(
        30.0, "Time that running requests have to end after SIGTERM."
    )
    admin_key: str | None = _option(
        None,
        "Key of /gateway/drain and /gateway/resume, or TAKT_GATEWAY_ADMIN_KEY; without one there "
        "are no such routes.",
    )
    otlp_endpoint: str | None = _option(None, "URL of an OpenTelemetry collector (OTLP/HTTP).")
    ssl_keyfile: str | None = _option(None, "TLS private key.")
    ssl_certfile: str | None = _option(None, "TLS certificate.")
    log_level: str = _option(
        "info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("max_request_bytes", "max_response_bytes", "max_in_flight", "max_connections"):
            self._check_range(name, 1, sys.maxsize)
        self._check_range("read_timeout_seconds", 1, MAX_WAIT_MS / 1000)
        self._check_range("lease_ms", 100, MAX_WAIT_MS)
        self._check_range("health_interval_ms", 50, MAX_WAIT_MS)
        self._check_range("rate_limit", 0, MAX_RATE)
        self._check_range("drain_timeout_seconds", 0, MAX_WAIT_MS / 1000)
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"--port {self.port} is not between 0 and 65535")
        for url in self.upstream:
            try:
                checked_url(url, "--upstream")
            except ValueError as error:
                raise ConfigError(str(error)) from None
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("--ssl-keyfile and --ssl-certfile need each other")

    def _check_range(self, name: str, least: float, most: float) -> None:
        # A number that is none lies in no range.
        if not least <= getattr(self, name) <= most:
            raise ConfigError(
                f"--{name.replace('_', '-')} must be {least:g} to {most:g}, "
                f"got {getattr(self, name)}"
            )

    @property
    def store_url(self) -> str:
        return self.store or default_store_url()

    @property
    def key_rules(self) -> KeyRules:
        return KeyRules(
            business_id_header=self.business_id_header,
            business_id_field=self.business_id_field,
            tenant_header=self.tenant_header,
        )


def default_store_url() -> str:
    return f"sqlite:///{cache_home() / 'gateway.db'}"
