"""The policy file: how each service and route is tried again, and where it goes."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from takt.errors import ConfigError
from takt.gateway.states import OnUnknown
from takt.gateway.upstream_url import is_http_url

ErrorKind = Literal["connect", "reset", "timeout", "stream"]
"""No connection; a connection that broke; no answer in time; an answer that broke off."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a route is tried again. A table may give any of these; the rest comes from above it."""

    strategy: Literal["exponential", "linear", "fixed"] = "exponential"
    """Of waits: full jitter below base * 2^(n-1); base * n; base."""
    base_ms: int = 250
    cap_ms: int = 10_000
    max_tries: int = 6
    budget_percent: float = 20.0
    """Retries allowed for each hundred requests, beside `min_retries_per_second`."""
    min_retries_per_second: float = 10.0
    retry_statuses: tuple[int, ...] = (408, 425, 429, 500, 502, 503, 504)
    retry_errors: tuple[ErrorKind, ...] = ("connect", "reset", "timeout", "stream")
    max_retry_after_ms: int = 60_000
    """A longer Retry-After is passed to the client instead of waited for."""
    deadline_ms: int = 600_000
    """Of the whole request, unless the client's own is shorter."""
    patience_ms: int = 60_000
    """How long a request waits while no upstream can be asked at all."""
    connect_timeout_ms: int = 2_000
    response_timeout_ms: int = 300_000
    """From the request's last byte to the answer's head."""
    idle_timeout_ms: int = 60_000
    """Between two pieces of an answer."""
    hedge_after_ms: int | None = None
    """Ask a second upstream too if the first has not begun to answer by then."""
    on_unknown: OnUnknown | None = None
    """Instead of --on-unknown."""

    def __post_init__(self) -> None:
        for name in (
            "base_ms",
            "cap_ms",
            "max_tries",
            "deadline_ms",
            "connect_timeout_ms",
            "response_timeout_ms",
            "idle_timeout_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hedge_after_ms is not None and self.hedge_after_ms < 1:
            raise ValueError(f"hedge_after_ms must be at least 1, got {self.hedge_after_ms}")
        if self.budget_percent < 0 or self.min_retries_per_second < 0:
            raise ValueError("budget_percent and min_retries_per_second must not be negative")


class Ttl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a record is kept in each state, in seconds."""

    processing: int = 86_400
    succeeded: int = 86_400
    failed_retryable: int = 3_600
    failed_final: int = 86_400
    dead: int = 604_800

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"ttl.{name} must be at least 1 second")


class UpstreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An upstream. `deduplicates`: it executes a key once and gives the same answer again."""

    url: str
    deduplicates: bool = False
    sends_done: bool = True
    """Ends streams of completions with `data: [DONE]`, as OpenAI does; if not, a body that ends as
    HTTP wants it is taken for whole."""
    api_key_env: str | None = None
    """Environment variable with a key that replaces the client's."""
    ca_file: str | None = None
    health_path: str = "/health"

    def __post_init__(self) -> None:
        if not is_http_url(self.url):
            raise ValueError(f"upstream {self.url!r} must be http://HOST or https://HOST")


class _Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    retry: dict[str, Any] = {}


class _Service(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paths: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    retry: dict[str, Any] = {}
    routes: tuple[_Route, ...] = ()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    retry: dict[str, Any] = {}
    ttl: Ttl = Ttl()
    upstreams: tuple[UpstreamConfig, ...] = ()
    services: dict[str, _Service] = {}
    dead_letter_webhook: str | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of paths with all that holds for it. `upstreams` and `fallback` are URLs."""

    service: str
    pattern: str
    retry: RetryPolicy
    upstreams: tuple[str, ...]
    fallback: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.service} {self.pattern}"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    ttl: Ttl
    upstreams: tuple[UpstreamConfig, ...]
    routes: tuple[Route, ...]
    """The first that matches holds; the last matches everything."""
    dead_letter_webhook: str | None = None

    def route_of(self, path: str) -> Route:
        for route in self.routes:
            if fnmatch.fnmatchcase(path, route.pattern):
                return route
        return self.routes[-1]


DEFAULT_SERVICE = "default"


def load_policy(path: Path | None, upstream_urls: tuple[str, ...] = ()) -> Policy:
    """The policy of a file (None: the defaults) with `--upstream`s added to its own.

    Raises `ConfigError` that names the file and the field.
    """
    if path is None:
        return build_policy({}, upstream_urls, "--upstream")
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"the policy {path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"the policy {path} is not TOML: it is nested too deeply") from None
    except ValueError as error:
        # Text that is no UTF-8 and numbers of thousands of digits too.
        raise ConfigError(f"the policy {path} is not TOML: {error}") from None
    return build_policy(data, upstream_urls, str(path))


def build_policy(data: dict[str, Any], upstream_urls: tuple[str, ...], name: str) -> Policy:
    """As `load_policy`, of a parsed file; `name` stands in messages."""
    try:
        file = msgspec.convert(data, _File)
        listed = {one.url for one in file.upstreams}
        extra = [UpstreamConfig(url=url) for url in upstream_urls if url not in listed]
        upstreams = (*file.upstreams, *extra)
        routes = _routes(file, tuple(one.url for one in upstreams))
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if not upstreams:
        raise ConfigError("no upstream is given: pass --upstream URL, or list some in the policy")
    if len({one.url for one in upstreams}) < len(upstreams):
        raise ConfigError(f"{name}: an upstream is listed twice")
    return Policy(
        ttl=file.ttl,
        upstreams=upstreams,
        routes=routes,
        dead_letter_webhook=file.dead_letter_webhook,
    )


def _routes(file: _File, urls: tuple[str, ...]) -> tuple[Route, ...]:
    spare = {url for service in file.services.values() for url in service.fallback}
    usual = tuple(url for url in urls if url not in spare) or urls
    routes: list[Route] = []
    for name, service in file.services.items():
        for url in (*service.upstreams, *service.fallback):
            if url not in urls:
                raise ValueError(f"services.{name} names {url}, which is no upstream")
        for one in service.routes:
            tables = (file.retry, service.retry, one.retry)
            routes.append(_route(name, one.path, tables, service, usual))
        for pattern in service.paths:
            routes.append(_route(name, pattern, (file.retry, service.retry), service, usual))
    routes.append(_route(DEFAULT_SERVICE, "*", (file.retry,), _Service(), usual))
    return tuple(routes)


def _route(
    service_name: str,
    pattern: str,
    tables: tuple[dict[str, Any], ...],
    service: _Service,
    usual: tuple[str, ...],
) -> Route:
    merged: dict[str, Any] = {}
    for table in tables:
        merged |= table
    try:
        retry = msgspec.convert(merged, RetryPolicy)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"retry of {service_name} {pattern}: {error}") from None
    return Route(
        service=service_name,
        pattern=pattern,
        retry=retry,
        upstreams=service.upstreams or usual,
        fallback=service.fallback,
    )
