"""An upstream that does what a test says, and counts what it executed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

Reply = Callable[["ScriptedUpstream", web.Request, bytes], Awaitable[web.StreamResponse]]

EVENTS = tuple(b'data: {"text": "token %d"}\n\n' % i for i in range(4))
DONE = b"data: [DONE]\n\n"
STREAM = b"".join(EVENTS) + DONE
BEGUN = b"".join(EVENTS[:2])
ERROR_EVENT = b'data: {"error": {"message": "the engine died"}}\n\n'
MORE = b""
"""Stands for what should follow an event, and does not come."""


@dataclass
class Seen:
    path: str
    key: str | None
    headers: dict[str, str]
    body: bytes


def answer(
    status: int = 200, text: str | None = None, headers: dict[str, str] | None = None
) -> Reply:
    """Executes, unless the status is an error. Without a text each answer is another."""

    async def reply(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        if status < 400:
            upstream.num_executed += 1
        shown = text if text is not None else f'{{"n": {upstream.num_executed}}}'
        return web.Response(
            status=status, text=shown, content_type="application/json", headers=headers
        )

    return reply


def stream(
    events: Sequence[bytes] = (*EVENTS, DONE),
    *,
    break_after: int | None = None,
    hold_before: int | None = None,
) -> Reply:
    """A stream; broken off after some events, or held before one until `release` is set."""

    async def reply(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        upstream.num_executed += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(events):
            if number == hold_before:
                await upstream.release.wait()
            if number == break_after:
                assert request.transport is not None
                request.transport.close()
                return response
            await response.write(event)
        await response.write_eof()
        return response

    return reply


def reset(*, executes: bool) -> Reply:
    """The connection breaks before an answer; the request was executed, or not."""

    async def reply(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        upstream.num_executed += executes
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    return reply


def hold(after: Reply) -> Reply:
    """Waits for `release`."""

    async def reply(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        await upstream.release.wait()
        return await after(upstream, request, body)

    return reply


@dataclass
class ScriptedUpstream:
    """Serves `script` in order, then `default` for ever."""

    script: list[Reply] = field(default_factory=list)
    default: Reply = field(default_factory=answer)
    seen: list[Seen] = field(default_factory=list)
    num_executed: int = 0
    health_status: int = 200
    url: str = ""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health_status)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(
            Seen(
                request.raw_path,
                request.headers.get("Idempotency-Key"),
                dict(request.headers),
                body,
            )
        )
        self.arrived.set()
        reply = self.script.pop(0) if self.script else self.default
        return await reply(self, request, body)
