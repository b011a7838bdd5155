"""A gateway's life: build, bind, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys

import uvloop

from takt.errors import ConfigError
from takt.gateway.app import GatewayApplication
from takt.gateway.build import build_parts, close_parts
from takt.gateway.gateway import Gateway
from takt.gateway.handler import Handler
from takt.gateway.health import HealthChecker
from takt.gateway.http.server import BACKLOG, HttpServer
from takt.gateway.options import GatewayOptions
from takt.gateway.parts import Parts

logger = logging.getLogger("takt.gateway")

_SWITCH_SECONDS = 0.0005
"""The store's thread hands the interpreter back after this time; Python's own 5 ms would show in
every answer."""

_GC_ALLOCATIONS = 20_000
"""Between two looks for cycles, of which a request leaves hardly any; at Python's own 700 there is
one in every second request."""

_POLL_SECONDS = 0.05

SHUTDOWN_SECONDS = 2.0
"""Time for connections to close once every answer has ended."""


def serve(given: GatewayOptions) -> int:
    """Serves until a signal; returns 0. Raises `ConfigError` for what cannot work."""
    options = with_environment(given)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    _allow_connections()
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Service(options).run())
    return 0


class _Service:
    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._num_signals = 0
        self._stop = asyncio.Event()

    async def run(self) -> None:
        tls = _tls(self._options)
        bound = _bind(self._options)
        try:
            parts = await build_parts(self._options)
        except BaseException:
            bound.close()
            raise
        try:
            await self._serve(parts, bound, tls)
        finally:
            await close_parts(parts)

    async def _serve(self, parts: Parts, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        gateway = Gateway(parts)
        handler = Handler(gateway)
        checker = HealthChecker(parts.router, parts.client, self._options.health_interval_ms)
        await checker.check_all()
        background = [
            asyncio.create_task(parts.keeper.run()),
            asyncio.create_task(checker.run()),
        ]
        server = HttpServer(
            GatewayApplication(parts, handler),
            max_connections=self._options.max_connections,
            read_seconds=self._options.read_timeout_seconds,
        )
        await server.start(bound, tls)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_ALLOCATIONS)
        self._announce(parts, bound)
        try:
            await self._wait(background)
        finally:
            handler.is_draining = True
            await self._drain(gateway, handler, server)
            await gateway.stop()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await server.close(SHUTDOWN_SECONDS)

    async def _wait(self, background: list[asyncio.Task[None]]) -> None:
        """Until a signal. A background task that ends by itself is an error of ours: it is raised
        rather than served without."""
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait([stop, *background], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        for task in background:
            if task.done():
                task.result()

    async def _drain(self, gateway: Gateway, handler: Handler, server: HttpServer) -> None:
        """New requests get 503; running ones may end, and their answers be read, until the time is
        up or a second signal."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.drain_timeout_seconds
        if gateway.num_running:
            logger.info("stopping: waiting for %d requests", gateway.num_running)
        while gateway.num_running or handler.num_in_flight or server.is_sending:
            if self._num_signals > 1 or loop.time() >= deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)

    def _on_signal(self) -> None:
        self._num_signals += 1
        self._stop.set()

    def _announce(self, parts: Parts, bound: socket.socket) -> None:
        host, port = bound.getsockname()[:2]
        scheme = "https" if self._options.ssl_certfile else "http"
        shown = f"[{host}]" if ":" in host else host
        upstreams = ", ".join(parts.router.upstreams)
        print(
            f"takt: gateway on {scheme}://{shown}:{port} before {upstreams}",
            file=sys.stderr,
            flush=True,
        )


def with_environment(options: GatewayOptions) -> GatewayOptions:
    key = os.environ.get("TAKT_GATEWAY_ADMIN_KEY")
    if not key or options.admin_key is not None:
        return options
    return dataclasses.replace(options, admin_key=key)


def _bind(options: GatewayOptions) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}; "
            "choose another with --port"
        ) from None


def _tls(options: GatewayOptions) -> ssl.SSLContext | None:
    if options.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS with --ssl-certfile {options.ssl_certfile} and --ssl-keyfile "
            f"{options.ssl_keyfile} is not possible: {error}"
        ) from None
    return context


def _allow_connections() -> None:
    """Each stream is two open files; the usual soft limit of 1024 would end at that many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
