"""The policy file: how each service and route is tried again, and where it goes."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from takt.errors import ConfigError
from takt.gateway.states import OnUnknown
from takt.gateway.upstream_url import checked_url

ErrorKind = Literal["connect", "reset", "timeout", "stream"]
"""No connection; a connection that broke; no answer in time; an answer that broke off."""


MAX_WAIT_MS = 7 * 86_400_000
MAX_TTL_SECONDS = 10 * 366 * 86_400


def _check_range(name: str, value: float, least: float, most: float) -> None:
    # A number that is none lies in no range.
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least:.0f} to {most:.0f}, got {value}")


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
        for name in ("max_retry_after_ms", "patience_ms"):
            _check_range(name, getattr(self, name), 0, MAX_WAIT_MS)
        for name in (
            "base_ms",
            "cap_ms",
            "deadline_ms",
            "connect_timeout_ms",
            "response_timeout_ms",
            "idle_timeout_ms",
        ):
            _check_range(name, getattr(self, name), 1, MAX_WAIT_MS)
        if self.hedge_after_ms is not None:
            _check_range("hedge_after_ms", self.hedge_after_ms, 1, MAX_WAIT_MS)
        _check_range("max_tries", self.max_tries, 1, 1000)
        for name in ("budget_percent", "min_retries_per_second"):
            _check_range(name, getattr(self, name), 0, 1e6)
        for status in self.retry_statuses:
            # An answer below 400 was executed: to ask again would execute it again.
            _check_range("each of retry_statuses", status, 400, 599)


class Ttl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a record is kept in each state, in seconds."""

    processing: int = 86_400
    succeeded: int = 86_400
    failed_retryable: int = 3_600
    failed_final: int = 86_400
    dead: int = 604_800

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _check_range(f"ttl.{name}", getattr(self, name), 1, MAX_TTL_SECONDS)


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
        msgspec.structs.force_setattr(self, "url", checked_url(self.url, "upstream"))
        if not re.fullmatch("/[!-~]*", self.health_path):
            raise ValueError(
                f"health_path {self.health_path!r} must begin with / and be printable ASCII "
                "without spaces"
            )


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
        for route in self.routes[:-1]:
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
        given = {checked_url(url, "--upstream"): None for url in upstream_urls}
        listed = {one.url for one in file.upstreams}
        extra = [UpstreamConfig(url=url) for url in given if url not in listed]
        upstreams = (*file.upstreams, *extra)
        routes = _routes(file, tuple(one.url for one in upstreams))
        if file.dead_letter_webhook is not None:
            _check_webhook(file.dead_letter_webhook)
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


def _check_webhook(url: str) -> None:
    """Its query may well hold a secret, so no message shows it."""
    try:
        checked_url(url.partition("?")[0], "dead_letter_webhook")
    except ValueError:
        raise ValueError("dead_letter_webhook must be http://HOST/PATH, or https") from None


def _routes(file: _File, urls: tuple[str, ...]) -> tuple[Route, ...]:
    spare = {url.rstrip("/") for service in file.services.values() for url in service.fallback}
    usual = tuple(url for url in urls if url not in spare) or urls
    routes: list[Route] = []
    for name, service in file.services.items():
        _check_service(name, service, urls)
        for one in service.routes:
            tables = (file.retry, service.retry, one.retry)
            routes.append(_route(name, one.path, tables, service, usual))
        for pattern in service.paths:
            routes.append(_route(name, pattern, (file.retry, service.retry), service, usual))
    routes.append(_route(DEFAULT_SERVICE, "*", (file.retry,), _Service(), usual))
    patterns = [route.pattern for route in routes]
    for pattern in patterns[:-1]:
        if not pattern.startswith(("/", "*")):
            raise ValueError(f"the path {pattern!r} must begin with / or *, else no request has it")
        if patterns[:-1].count(pattern) > 1:
            raise ValueError(f"the path {pattern!r} is listed twice; only the first would count")
    return tuple(routes)


def _check_service(name: str, service: _Service, urls: tuple[str, ...]) -> None:
    if name == DEFAULT_SERVICE:
        raise ValueError(f"services.{name}: this name is that of all other paths; choose another")
    if not (service.paths or service.routes):
        raise ValueError(f"services.{name} has no paths, so that nothing would be its own")
    for url in (*service.upstreams, *service.fallback):
        if url.rstrip("/") not in urls:
            raise ValueError(f"services.{name} names {url}, which is no upstream")


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
        upstreams=tuple(url.rstrip("/") for url in service.upstreams) or usual,
        fallback=tuple(url.rstrip("/") for url in service.fallback),
    )
