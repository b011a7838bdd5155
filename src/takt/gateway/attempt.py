"""One attempt: a request sent to one upstream, and what came of it."""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
import yarl
from multidict import CIMultiDict

from takt.errors import ConfigError
from takt.gateway.headers import head_of
from takt.gateway.idle_watch import IdleWatch
from takt.gateway.policy import RetryPolicy
from takt.gateway.retry import Failure, Outcome, status_outcome
from takt.gateway.states import Head
from takt.gateway.upstream import Upstream

KEEP_ALIVE_SECONDS = 3.0
"""Shorter than servers' own (uvicorn's is 5 s): a request sent into a connection that the server
is closing has an unknown outcome."""

MAX_REFUSAL_BYTES = 1_048_576


class AttemptFailedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """`headers` are those for the upstream, without the key and its credential."""

    method: str
    path_and_query: str
    headers: CIMultiDict[str]
    body: bytes


class OpenAnswer:
    """An answer whose body has still to come. `close` must follow."""

    def __init__(self, response: aiohttp.ClientResponse, idle_timeout_ms: int) -> None:
        self.head: Head = head_of(response.status, response.headers)
        self.is_stream = response.ok and response.content_type == "text/event-stream"
        self.on_close: Callable[[], None] = lambda: None
        self._is_closed = False
        self._response = response
        self._idle_seconds = idle_timeout_ms / 1000

    def whole(self) -> bytes | None:
        """All of the body, if it has come already: short answers do, with their head."""
        content = self._response.content
        if not content.is_eof() or content.exception() is not None:
            return None
        return content.read_nowait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `AttemptFailedError` if it breaks off or stands still."""
        content = self._response.content
        watch = IdleWatch(self._idle_seconds, self._response.close)
        try:
            while True:
                watch.begin()
                piece = await content.readany()
                watch.end()
                if not piece:
                    return
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            if watch.is_idle:
                raise AttemptFailedError(_broken("timeout", "the answer stood still")) from None
            raise AttemptFailedError(_broken("stream", type(error).__name__)) from None
        finally:
            watch.close()

    def close(self) -> None:
        """A connection whose answer was not read to its end is closed. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_close()
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class UpstreamClient:
    """Sends attempts over connections that are kept."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            auto_decompress=True,
            trust_env=False,
        )
        # It would send PUT and DELETE again by itself where a connection breaks: whether anything
        # is sent twice is decided and counted elsewhere.
        self._session._retry_connection = False
        self._tls: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        await self._session.close()

    async def send(
        self,
        upstream: Upstream,
        request: OutgoingRequest,
        extra_headers: dict[str, str],
        policy: RetryPolicy,
        remaining_ms: int,
    ) -> OpenAnswer:
        """An answer of a status that is not tried again. Raises `AttemptFailedError` otherwise."""
        headers = request.headers.copy()
        headers.update(extra_headers)
        if upstream.api_key is not None:
            headers["Authorization"] = f"Bearer {upstream.api_key}"
        response = await self._request(upstream, request, headers, policy, remaining_ms)
        answer = OpenAnswer(response, policy.idle_timeout_ms)
        if response.status not in policy.retry_statuses:
            return answer
        try:
            body = await _read_refusal(answer)
        finally:
            answer.close()
        raise AttemptFailedError(
            Failure(
                kind="status",
                outcome=status_outcome(response.status),
                cause=f"status {response.status}",
                status=response.status,
                retry_after_ms=retry_after_ms(response.headers.get("Retry-After")),
                head=answer.head,
                body=body,
            )
        )

    async def _request(
        self,
        upstream: Upstream,
        request: OutgoingRequest,
        headers: CIMultiDict[str],
        policy: RetryPolicy,
        remaining_ms: int,
    ) -> aiohttp.ClientResponse:
        timeout_ms = min(policy.response_timeout_ms, remaining_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._session.request(
                    request.method,
                    yarl.URL(upstream.url + request.path_and_query, encoded=True),
                    headers=headers,
                    data=request.body or None,
                    allow_redirects=False,
                    ssl=self._tls_of(upstream),
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=policy.connect_timeout_ms / 1000
                    ),
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise AttemptFailedError(
                Failure(
                    kind="connect", outcome=Outcome.NOT_EXECUTED, cause=f"connect: {_reason(error)}"
                )
            ) from None
        except TimeoutError:
            raise AttemptFailedError(_broken("timeout", "no answer in time")) from None
        except (aiohttp.ClientError, OSError) as error:
            raise AttemptFailedError(_broken("reset", type(error).__name__)) from None

    def check_tls(self, upstream: Upstream) -> None:
        """Raises `ConfigError` if the upstream's authorities cannot be read."""
        try:
            self._tls_of(upstream)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"ca_file {upstream.ca_file} of {upstream.url}: {error}") from None

    def _tls_of(self, upstream: Upstream) -> ssl.SSLContext | bool:
        """Certificates are always verified: by the system's authorities, or the given ones."""
        if upstream.ca_file is None:
            return True
        if upstream.ca_file not in self._tls:
            self._tls[upstream.ca_file] = ssl.create_default_context(cafile=upstream.ca_file)
        return self._tls[upstream.ca_file]

    async def health_problem(
        self, url: str, upstream: Upstream, timeout_seconds: float
    ) -> str | None:
        """Why a health check failed; None if it was answered by anything but a server's error."""
        try:
            async with self._session.get(
                url,
                ssl=self._tls_of(upstream),
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            ) as response:
                return None if response.status < 500 else f"status {response.status}"
        except TimeoutError:
            return f"no answer in {timeout_seconds:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return _reason(error)

    async def post_json(self, url: str, body: bytes, timeout_seconds: float) -> bool:
        """Whether a notice was accepted."""
        try:
            async with self._session.post(
                url,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            ) as response:
                return response.ok
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


def retry_after_ms(value: str | None) -> int | None:
    """Of a Retry-After header, in either of its forms; None if absent or neither."""
    if value is None:
        return None
    try:
        return max(0, round(float(value) * 1000))
    except (ValueError, OverflowError):
        pass
    try:
        date = email.utils.parsedate_to_datetime(value)
        return max(0, round((date.timestamp() - time.time()) * 1000))
    except (ValueError, TypeError, OverflowError):
        return None


async def _read_refusal(answer: OpenAnswer) -> bytes:
    body = b""
    try:
        async for piece in answer.pieces():
            body += piece
            if len(body) > MAX_REFUSAL_BYTES:
                break
    except AttemptFailedError:
        return b""
    return body


def _broken(kind: str, cause: str) -> Failure:
    return Failure(kind=kind, outcome=Outcome.UNKNOWN, cause=f"{kind}: {cause}")


def _reason(error: Exception) -> str:
    """Says what went wrong without the address, which may hold a credential."""
    certificate = getattr(error, "certificate_error", None)
    if certificate is not None:
        return f"TLS: {getattr(certificate, 'verify_message', '') or 'certificate refused'}"
    inner = getattr(error, "os_error", None)
    return (inner.strerror if inner is not None else None) or type(error).__name__
