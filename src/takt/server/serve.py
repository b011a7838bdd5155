"""A server's life: bind, load, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry
from rich.console import Console

from takt.config import EngineConfig, ServerOptions
from takt.engine.messages import StepStats
from takt.engine.proc_client import ProcessEngineClient
from takt.engine.replicas import ReplicatedEngineClient
from takt.engine.time_slice import SHORT_SLICE_NS, set_time_slice
from takt.errors import TaktError
from takt.observe.ledger.ledger import SLO
from takt.observe.metrics import Metrics
from takt.observe.step_log import StepLog
from takt.server.app import build_app
from takt.server.housekeeping import Housekeeping
from takt.server.http_server import (
    PortInUseError,
    address_of,
    bind_socket,
    make_http_server,
    remove_unix_socket,
)
from takt.server.loading import load_text_side, model_names, served_model
from takt.server.progress import show_progress
from takt.server.state import Phase, ServerState

logger = logging.getLogger("takt.server")

_POLL_SECONDS = 0.05

_SWITCH_SECONDS = 0.0005
"""A thread that tokenises hands the interpreter to the event loop after this time; Python's own
5 ms would show in the gaps of every stream."""


def serve(engine: EngineConfig, server: ServerOptions) -> int:
    """Serves a model until a signal or a fatal error; returns the program's exit code.

    0 after a signal, else that of the error, in one line on stderr: 2 for what its user must
    change, 1 for anything else, such as an engine that keeps dying.
    """
    console = Console(stderr=True, highlight=False)
    try:
        options = _with_environment(server)
        _set_up_logging(options)
        _allow_connections()
        sys.setswitchinterval(_SWITCH_SECONDS)
        set_time_slice(SHORT_SLICE_NS)
        bound = bind_socket(options)
        with (
            bound or contextlib.nullcontext(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_Service(engine, options, bound, console).run())
    except TaktError as error:
        console.print("[bold red]takt:[/]", end=" ")
        console.print(str(error), markup=False, soft_wrap=True)
        return error.exit_code


class _Service:
    """One run of the server, on one event loop."""

    def __init__(
        self,
        engine: EngineConfig,
        options: ServerOptions,
        bound: socket.socket | None,
        console: Console,
    ) -> None:
        self._engine = engine
        self._options = options
        self._bound = bound
        self._console = console
        self._num_engines = engine.parallel.data_parallel_size
        self._metrics = Metrics(
            CollectorRegistry(), model_names(engine, options)[0], self._num_engines
        )
        targets = SLO(engine.scheduler.slo_itl_p99_ms, engine.scheduler.slo_ttft_p99_ms)
        self._state = ServerState(options, self._metrics, targets)
        self._metrics.watch_in_flight(lambda: self._state.num_in_flight)
        self._step_log = StepLog(Path(options.step_log)) if options.step_log else None
        self._http = make_http_server(build_app(self._state), options)
        self._client: ProcessEngineClient | ReplicatedEngineClient | None = None
        self._housekeeping = Housekeeping(self._state)
        self._num_signals = 0
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._fatal: TaktError | None = None

    async def run(self) -> int:
        """Returns the exit code after a signal; raises what ended the server otherwise."""
        self._watch_signals()
        http = asyncio.create_task(self._http.serve([self._bound] if self._bound else None))
        work = asyncio.create_task(self._load_and_wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({http, work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif http.done():
                _check_listening(http, self._options)
            else:
                await self._drain()
        finally:
            stop.cancel()
            await _cancel(work)
            await self._close(http)
            self._housekeeping.stop()
            self._unwatch_signals()
        if self._fatal is not None:
            raise self._fatal
        return 0

    async def _load_and_wait(self) -> None:
        """Loads, announces, and then waits for a fatal error of the engine."""
        died = asyncio.Event()

        def on_dead(sentence: str) -> None:
            self._fatal = TaktError(sentence)
            died.set()

        with show_progress(self._console) as on_progress:
            text_side = await load_text_side(self._engine, self._options, on_progress)
            make_client: Callable[..., ProcessEngineClient | ReplicatedEngineClient]
            make_client = ProcessEngineClient
            if self._num_engines > 1:
                make_client = partial(ReplicatedEngineClient, make_client=ProcessEngineClient)
            client = make_client(
                self._engine,
                on_progress,
                on_step=_observer(self._housekeeping.on_step, self._step_log),
                on_dead=on_dead,
                max_engine_deaths=self._options.max_engine_deaths,
            )
            self._client = client
            if client.placement is not None:
                # Of this thread, and of those that it starts.
                os.sched_setaffinity(0, client.placement.server)
            await client.start()
        self._state.model = served_model(text_side, client, self._engine, self._options)
        self._state.phase = Phase.SERVING
        self._housekeeping.start(lambda: client.engine_pids)
        self._announce()
        await died.wait()

    async def _drain(self) -> None:
        """New requests get 503; running ones may end, until the time is up or a second signal."""
        self._state.phase = Phase.DRAINING
        waiting = self._state.num_running
        if waiting:
            logger.info("stopping: waiting for %d requests; a second signal stops at once", waiting)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.drain_timeout_seconds
        while self._state.num_running and loop.time() < deadline and not self._stop_now.is_set():
            await asyncio.sleep(_POLL_SECONDS)

    async def _close(self, http: asyncio.Task[None]) -> None:
        """Engine first: its end gives what still runs an error event before the sockets close."""
        self._state.phase = Phase.DRAINING
        if self._client is not None:
            await self._client.close()
        self._http.should_exit = True
        while not http.done():
            self._http.force_exit = self._http.force_exit or self._stop_now.is_set()
            await asyncio.wait({http}, timeout=_POLL_SECONDS)
        self._state.shut_down_pools()
        if self._step_log is not None:
            self._step_log.close()
        if self._options.uds is not None:
            remove_unix_socket(self._options.uds)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _unwatch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self) -> None:
        self._num_signals += 1
        self._stop.set()
        if self._num_signals > 1:
            self._stop_now.set()

    def _announce(self) -> None:
        url = address_of(self._options, self._bound)
        model = model_names(self._engine, self._options)[0]
        if self._client is not None:
            info = self._client.info
            self._console.print(
                f"{model}: {_replicas(self._num_engines)}context {info.max_model_len} tokens, "
                f"KV pool {info.num_kv_tokens} tokens ({info.kv_cache_bytes / 2**20:.0f} MiB of "
                f"{info.kv_cache_dtype}), "
                f"{info.num_threads} threads, loaded in {info.load_seconds:.1f} s",
                soft_wrap=True,
                markup=False,
            )
            if info.precision:
                self._console.print(f"precision {info.precision}", soft_wrap=True, markup=False)
            if info.step_times:
                self._console.print(f"step times {info.step_times}", soft_wrap=True, markup=False)
        self._console.print(f"Serving on [bold]{url}[/]. Try:", soft_wrap=True)
        where = f"--unix-socket {self._options.uds} http://localhost" if not self._bound else url
        self._console.print(
            f"  curl {where}/v1/completions -H 'Content-Type: application/json' "
            f'-d \'{{"model": "{model}", "prompt": "The capital of France is"}}\'',
            soft_wrap=True,
            markup=False,
        )


def _replicas(count: int) -> str:
    return "" if count == 1 else f"{count} replicas, each: "


def _observer(
    observe: Callable[[StepStats], None], log: StepLog | None
) -> Callable[[StepStats], None]:
    if log is None:
        return observe
    add = log.add

    def observe_and_log(stats: StepStats) -> None:
        observe(stats)
        add(stats)

    return observe_and_log


def _check_listening(http: asyncio.Task[None], options: ServerOptions) -> None:
    """What ended the HTTP server by itself, as one line."""
    try:
        http.result()
    except OSError as error:
        raise PortInUseError(f"cannot listen on {options.uds}: {error}") from None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def _with_environment(options: ServerOptions) -> ServerOptions:
    key = os.environ.get("TAKT_API_KEY")
    if not key or options.api_key:
        return options
    return dataclasses.replace(options, api_key=(key,))


def _allow_connections() -> None:
    """Each stream is an open file; the usual soft limit of 1024 would end at that many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _set_up_logging(options: ServerOptions) -> None:
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if options.log_level == "info":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
