"""One attempt: a request sent to one upstream, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import math
import os
import socket
import ssl
import time
from collections.abc import Callable

import msgspec

from takt.errors import ConfigError
from takt.gateway.headers import head_of
from takt.gateway.http.decoding import BadEncodingError
from takt.gateway.http.fields import Fields, head_bytes
from takt.gateway.http.pool import ConnectionPool, Origin
from takt.gateway.http.response import BrokenExchangeError, EnoughError, Response, Sink
from takt.gateway.http.upstream_connection import UpstreamConnection
from takt.gateway.policy import MAX_WAIT_MS, RetryPolicy
from takt.gateway.retry import Failure, Outcome, status_outcome
from takt.gateway.states import Head
from takt.gateway.upstream import Upstream

MAX_REFUSAL_BYTES, MAX_REFUSAL_SECONDS = 1_048_576, 2.0

LONGEST_RETRY_AFTER_MS = 2 * MAX_WAIT_MS
"""What a greater number of seconds counts as: longer than any policy waits."""

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""Methods whose requests need no Content-Length where there is no body."""


class AttemptFailedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class OutgoingRequest(msgspec.Struct, frozen=True):
    """`headers` are those for the upstream, without the key and its credential."""

    method: str
    path_and_query: str
    headers: list[tuple[str, str]]
    body: bytes


class OpenAnswer:
    """An answer whose body has still to come. `close` must follow."""

    def __init__(self, response: Response, connection: UpstreamConnection) -> None:
        self.head: Head = head_of(response.status, response.headers)
        content_type = response.headers.get("content-type", "").partition(";")[0]
        self.is_stream = (
            response.status < 400 and content_type.strip().lower() == "text/event-stream"
        )
        self.on_close: Callable[[], None] = lambda: None
        self._is_closed = False
        self._response = response
        self._connection = connection

    @property
    def is_good(self) -> bool:
        """Nothing can go wrong with it any more."""
        return self._response.has_whole and not self.is_stream

    def whole(self) -> bytes | None:
        """All of the body, if it has come already: short answers do, with their head."""
        return self._response.whole()

    async def read(self, sink: Sink) -> None:
        """Gives `sink` each piece of the body in the moment it comes; returns at its end, or when
        `sink` raises `EnoughError`.

        Raises `AttemptFailedError` if the body breaks off or stands still, and what else `sink`
        raises.
        """
        try:
            await self._response.read(sink)
        except BrokenExchangeError as error:
            kind = "timeout" if error.is_late else "stream"
            raise AttemptFailedError(_broken(kind, str(error))) from None
        except BadEncodingError as error:
            raise AttemptFailedError(_broken("stream", str(error))) from None

    def close(self) -> None:
        """A connection whose answer was not read to its end is closed. May be called twice."""
        self._close(self._connection.close)

    def leave(self) -> None:
        """As `close`, but what is left of the body may still come in a moment."""
        self._close(self._connection.leave)

    def _close(self, close_connection: Callable[[], None]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.on_close()
        if not self._response.is_whole:
            close_connection()


class UpstreamClient:
    """Sends attempts over connections that are kept. Owned by the event loop that makes it."""

    def __init__(self) -> None:
        self._pool = ConnectionPool()
        self._loop = asyncio.get_running_loop()
        self._origins: dict[str, Origin] = {}
        self._tls: dict[str | None, ssl.SSLContext] = {}

    async def close(self) -> None:
        await self._pool.close()

    async def send(
        self,
        upstream: Upstream,
        request: OutgoingRequest,
        extra_headers: dict[str, str],
        policy: RetryPolicy,
        remaining_ms: int,
    ) -> OpenAnswer:
        """An answer of a status that is not tried again. Raises `AttemptFailedError` otherwise."""
        origin = self.origin_of(upstream)
        until = self._loop.time() + remaining_ms / 1000
        seconds = min(policy.response_timeout_ms, remaining_ms) / 1000
        connection = self._pool.take(origin)
        if connection is None:
            began = self._loop.time()
            connection = await self._connect(
                origin, min(policy.connect_timeout_ms, remaining_ms) / 1000
            )
            seconds = max(0.0, seconds - (self._loop.time() - began))
        headers = _with_own(request.headers, extra_headers, upstream.api_key)
        try:
            response = await connection.send(
                _request_bytes(origin, request, headers),
                is_head=request.method == "HEAD",
                response_seconds=seconds,
                idle_seconds=policy.idle_timeout_ms / 1000,
            )
        except BrokenExchangeError as error:
            kind = "timeout" if error.is_late else "reset"
            raise AttemptFailedError(_broken(kind, str(error))) from None
        answer = OpenAnswer(response, connection)
        if response.status not in policy.retry_statuses:
            return answer
        raise AttemptFailedError(await _refusal(response, answer, until - self._loop.time()))

    async def _connect(self, origin: Origin, seconds: float) -> UpstreamConnection:
        try:
            return await self._pool.connect(origin, seconds)
        except OSError as error:
            raise AttemptFailedError(
                Failure(
                    kind="connect", outcome=Outcome.NOT_EXECUTED, cause=f"connect: {_reason(error)}"
                )
            ) from None

    def origin_of(self, upstream: Upstream) -> Origin:
        """Raises `ConfigError` if the upstream's authorities cannot be read, or its name is none.

        Certificates are always verified: by the system's authorities, or the given ones.
        """
        known = self._origins.get(upstream.url)
        if known is not None:
            return known
        try:
            origin = Origin.of(upstream.url, self._tls_of(upstream.url, upstream.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"ca_file {upstream.ca_file} of {upstream.url}: {error}") from None
        except UnicodeError:
            raise ConfigError(f"the upstream {upstream.url} names no possible host") from None
        self._origins[upstream.url] = origin
        return origin

    def _tls_of(self, url: str, ca_file: str | None) -> ssl.SSLContext | None:
        if not url.startswith("https:") and ca_file is None:
            return None
        if ca_file not in self._tls:
            self._tls[ca_file] = ssl.create_default_context(cafile=ca_file)
        return self._tls[ca_file]

    async def health_problem(self, upstream: Upstream, timeout_seconds: float) -> str | None:
        """Why a health check failed; None if it was answered by anything but a server's error."""
        origin = self.origin_of(upstream)
        request = OutgoingRequest("GET", upstream.health_path, [], b"")
        try:
            status = await self._status_of(origin, request, timeout_seconds)
        except TimeoutError:
            return f"no answer in {timeout_seconds:g} s"
        except OSError as error:
            return _reason(error)
        except BrokenExchangeError as error:
            return str(error)
        return None if status < 500 else f"status {status}"

    async def post_json(self, url: str, body: bytes, timeout_seconds: float) -> bool:
        """Whether a notice was accepted."""
        request = OutgoingRequest("POST", "", [("Content-Type", "application/json")], body)
        try:
            origin = self._origins.get(url) or Origin.of(url, self._tls_of(url, None))
            self._origins[url] = origin
            return await self._status_of(origin, request, timeout_seconds) < 300
        except (OSError, BrokenExchangeError, UnicodeError):
            return False

    async def _status_of(self, origin: Origin, request: OutgoingRequest, seconds: float) -> int:
        """Of an answer to a request that nobody waits for but us."""
        async with asyncio.timeout(seconds):
            connection = self._pool.take(origin) or await self._pool.connect(origin, seconds)
            response = await connection.send(
                _request_bytes(origin, request, request.headers),
                is_head=False,
                response_seconds=seconds,
                idle_seconds=seconds,
            )
        if not response.is_whole:
            connection.close()
        return response.status


def _with_own(
    headers: list[tuple[str, str]], extra: dict[str, str], api_key: str | None
) -> list[tuple[str, str]]:
    if api_key is not None:
        headers = [pair for pair in headers if pair[0].lower() != "authorization"]
        headers.append(("Authorization", f"Bearer {api_key}"))
    return [*headers, *extra.items()]


def _request_bytes(origin: Origin, request: OutgoingRequest, headers: Fields) -> bytes:
    length = ""
    if request.body or request.method not in _WITHOUT_BODY:
        length = f"Content-Length: {len(request.body)}\r\n"
    first_line = f"{request.method} {origin.path}{request.path_and_query} HTTP/1.1"
    fields = [("Host", origin.authority), *headers]
    return head_bytes(first_line, fields, length) + request.body


async def _refusal(response: Response, answer: OpenAnswer, remaining_seconds: float) -> Failure:
    try:
        body = await _read_refusal(answer, min(MAX_REFUSAL_SECONDS, remaining_seconds))
    finally:
        answer.close()
    return Failure(
        kind="status",
        outcome=status_outcome(response.status),
        cause=f"status {response.status}",
        status=response.status,
        retry_after_ms=retry_after_ms(response.headers.get("retry-after")),
        head=answer.head,
        body=body,
    )


async def _read_refusal(answer: OpenAnswer, seconds: float) -> bytes:
    """The body, or what came of it: its status is what counts."""
    pieces: list[bytes] = []
    num_bytes = 0

    def take(piece: bytes) -> None:
        nonlocal num_bytes
        pieces.append(piece)
        num_bytes += len(piece)
        if num_bytes > MAX_REFUSAL_BYTES:
            raise EnoughError

    with contextlib.suppress(TimeoutError, AttemptFailedError):
        async with asyncio.timeout(seconds):
            await answer.read(take)
    return b"".join(pieces)


def retry_after_ms(value: str | None) -> int | None:
    """Of a Retry-After header, in either of its forms; None if absent or neither."""
    if value is None:
        return None
    try:
        seconds = math.nan if "_" in value else float(value)
    except ValueError:
        seconds = math.nan
    if not math.isnan(seconds):
        return round(min(max(0.0, seconds) * 1000, LONGEST_RETRY_AFTER_MS))
    try:
        date = email.utils.parsedate_to_datetime(value)
        return max(0, round((date.timestamp() - time.time()) * 1000))
    except (ValueError, TypeError, OverflowError):
        return None


def _broken(kind: str, cause: str) -> Failure:
    return Failure(kind=kind, outcome=Outcome.UNKNOWN, cause=f"{kind}: {cause}")


def _reason(error: OSError) -> str:
    """Says what went wrong without the address, which may hold a credential."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message or 'certificate refused'}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or type(error).__name__}"
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or type(error).__name__
    return os.strerror(error.errno)
