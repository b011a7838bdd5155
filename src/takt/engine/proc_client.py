"""The engine as a process of its own: started, watched, restarted, and spoken to."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import zmq

from takt.config import EngineConfig
from takt.engine.child import EngineChild
from takt.engine.client import EngineState, ReplicaStatus
from takt.engine.gate import Gate
from takt.engine.host_share import HostShare
from takt.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineEvent,
    EngineFailed,
    EngineReady,
    LoadProgress,
    OffloadBlocks,
    RequestOutput,
    Shutdown,
    StepMessage,
    StepStats,
)
from takt.engine.placement import Placement
from takt.engine.requests import with_seed
from takt.engine.streams import Stream, Streams
from takt.errors import (
    EngineDeadError,
    EngineStartError,
    InvalidRequestError,
    TaktError,
)

_log = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-P", "-m", "takt.engine.process")

_LONGEST_DIRECTORY = 70
"""A Unix socket's path has at most 107 bytes, of which its name takes some."""
_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 5.0
_FAREWELL_SECONDS = 1.0
"""Time for the last words of a process that ended in order to come out of the socket."""
_STOP_SECONDS = 5.0
"""Time that an engine has to end after `Shutdown`."""


class ProcessEngineClient:
    """An `EngineClient` that owns the engine's process.

    All of it runs on one event loop. `on_step` gets the record of each step; `on_dead` a sentence,
    once, when the engine has died `max_engine_deaths` times in a row without completing a step, or
    cannot be started again. `share` is its part of the host; it has all of it if None.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[str, int, int], None] | None = None,
        *,
        on_step: Callable[[StepStats], None] | None = None,
        on_dead: Callable[[str], None] | None = None,
        max_engine_deaths: int = 3,
        command: Sequence[str] = ENGINE_COMMAND,
        share: HostShare | None = None,
    ) -> None:
        self._config = config
        self._on_progress = on_progress
        self._on_step = on_step
        self._on_dead = on_dead
        self._max_deaths = max_engine_deaths
        self._command = command
        self._gate = Gate(config.scheduler)
        self._share = share or HostShare.whole(config, sorted(os.sched_getaffinity(0)))
        self._state = EngineState.STARTING
        self._info: EngineReady | None = None
        self._streams = Streams()
        self._child: EngineChild | None = None
        self._epoch = 0
        self._deaths_in_a_row = 0
        self._failure: EngineFailed | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._directory: Path | None = None

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the engine and returns when it is ready.

        Raises `EngineStartError` for what a user must change, `EngineDeadError` if it keeps dying.
        """
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._exited = asyncio.Event()
        self._idle = asyncio.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._directory = _private_directory()
        self._launch()
        try:
            await self._started
        except BaseException:
            await self.close()
            raise

    async def close(self, drain_timeout_seconds: float = 0.0) -> None:
        """Takes no new request, lets running ones end for a while, then stops the engine.

        Requests that are still running then get `EngineDeadError`. A client that was never started
        has nothing to close.
        """
        if self._directory is None:
            return
        if self._state is not EngineState.DEAD:
            self._state = EngineState.DRAINING
        await self._drain(drain_timeout_seconds)
        self._streams.fail_all("the server has stopped")
        self._state = EngineState.DEAD
        for task in self._tasks:
            task.cancel()
        if self._child is not None:
            await self._stop(self._child)
        self._child = None
        self._context.destroy(linger=0)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _stop(self, child: EngineChild) -> None:
        if not self._exited.is_set():
            if self._info is None or self._info.epoch != child.epoch:
                child.kill()  # it is loading, and reads no command before it is ready
            child.send(Shutdown())
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._exited.wait()
            except TimeoutError:
                child.kill()
                await self._exited.wait()
        child.close()

    # -- EngineClient -------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def info(self) -> EngineReady:
        if self._info is None:
            raise EngineDeadError("the engine was never ready")
        return self._info

    @property
    def placement(self) -> Placement | None:
        """Which CPUs engine and server should have; None if there are too few for both."""
        return self._share.placement

    @property
    def engine_pid(self) -> int | None:
        """Of the running process, for diagnosis."""
        return None if self._child is None else self._child.pid

    @property
    def engine_pids(self) -> list[int]:
        """Of all engines that run."""
        return [] if self._child is None else [self._child.pid]

    @property
    def epoch(self) -> int:
        """Number of the engine process, from 1: restarts are `epoch - 1`."""
        return self._epoch

    @property
    def num_outstanding(self) -> int:
        """Sequences that the engine still owes tokens."""
        return self._streams.num_choices

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        num_restarts, num_owed = max(self._epoch - 1, 0), self._streams.num_choices
        pid = self.engine_pid
        return (ReplicaStatus(0, self._state, num_restarts, num_owed, 0, pid, self._info),)

    def check(self, requests: Sequence[AddRequest]) -> None:
        if self._state is not EngineState.READY:
            raise EngineDeadError(_UNAVAILABLE[self._state])
        self._gate.check(requests, self._streams.num_choices)
        for request in requests:
            if request.request_id in self._streams:
                raise ValueError(f"request_id {request.request_id} is in use")

    async def generate(
        self, request: AddRequest, *, is_checked: bool = False
    ) -> AsyncGenerator[RequestOutput, None]:
        """`is_checked` says that `check` has just let the request in."""
        if not is_checked:
            self.check([request])
        child = self._child
        assert child is not None
        request = msgspec.structs.replace(request, sampling=with_seed(request.sampling))
        stream = Stream(request, self._loop)
        self._streams.add(stream)
        self._gate.sent(request)
        child.send(request)
        try:
            while (output := await stream.next()) is not None:
                if output.finish_reason == "error":
                    sentence = output.error or "the request was refused"
                    raise InvalidRequestError(
                        sentence, param=output.error_param, code=output.error_code
                    )
                yield output
        finally:
            self._gate.ended(request.request_id)
            if not stream.is_complete:
                self._streams.remove(stream)
                self._note_idle()
                if self._child is child:
                    child.send(AbortRequests([request.request_id]))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        if self._child is not None and request_id in self._streams:
            self._child.send(AbortRequests([request_id], choice))

    def withdraw(self, request_id: str) -> bool:
        """Takes a request back, for another engine to go on with: `generate` then raises
        `WithdrawnError`. False if it cannot be, because something of it is still to be read."""
        return self._streams.withdraw(request_id)

    def offload_blocks(self, hot_share: float) -> None:
        """Has the engine copy cold prefixes to host memory, where it has some."""
        if self._child is not None and self._info is not None and self._info.kv_num_host_blocks:
            self._child.send(OffloadBlocks(hot_share))

    # -- supervision --------------------------------------------------------------------------

    def _launch(self) -> None:
        assert self._directory is not None
        self._epoch += 1
        self._gate.restart()
        self._exited.clear()
        self._child = EngineChild(
            command=self._command,
            directory=self._directory,
            epoch=self._epoch,
            config=self._config if self._info is None else _as_accepted(self._config),
            share=self._share,
            context=self._context,
            on_event=self._on_event,
            on_exit=self._on_exit,
        )

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case StepMessage(outputs=outputs, stats=stats):
                if stats is not None:
                    stats.step_id += self._share.first_step_id
                step_id = -1 if stats is None else stats.step_id
                self._streams.dispatch(outputs, step_id)
                self._streams.dispatch_tokens(event.members, event.token_ids, step_id)
                self._note_idle()
                if stats is not None:
                    self._gate.take(stats.load)
                    self._deaths_in_a_row = 0
                    if self._on_step is not None:
                        self._on_step(stats)
            case LoadProgress(stage=stage, done=done, total=total):
                if self._on_progress is not None:
                    self._on_progress(stage, done, total)
            case EngineReady():
                self._info = event
                self._gate.take(event.load)
                if self._state in (EngineState.STARTING, EngineState.RESTARTING):
                    self._state = EngineState.READY
                if not self._started.done():
                    self._started.set_result(None)
            case EngineFailed():
                self._failure = event

    def _on_exit(self, return_code: int) -> None:
        """The process has ended: everyone is told at once, then it is started again or not."""
        was_stopping = self._state in (EngineState.DRAINING, EngineState.DEAD)
        if not was_stopping and self._state is not EngineState.STARTING:
            self._state = EngineState.RESTARTING
        self._streams.fail_all(f"{self._share.name} died ({_describe(return_code)})")
        self._note_idle()
        self._exited.set()
        if not was_stopping:
            self._run(self._recover(return_code))

    async def _recover(self, return_code: int) -> None:
        child = self._child
        assert child is not None
        was_ready = self._info is not None and self._info.epoch == child.epoch
        if return_code > 0 and not was_ready:
            await self._hear_failure(child)
        child.close()
        if self._state in (EngineState.DRAINING, EngineState.DEAD):
            return
        if self._failure is not None:
            failure = self._failure
            self._give_up(EngineStartError(failure.message, exit_code=failure.exit_code))
            return
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= self._max_deaths:
            self._give_up(
                EngineDeadError(
                    f"{self._share.name} died {self._deaths_in_a_row} times in a row without "
                    f"completing a step, the last time with {_describe(return_code)}"
                )
            )
            return
        delay = min(
            _FIRST_BACKOFF_SECONDS * 2 ** (self._deaths_in_a_row - 1), _LONGEST_BACKOFF_SECONDS
        )
        _log.error("%s died (%s); it starts again", self._share.name, _describe(return_code))
        await asyncio.sleep(delay)
        if self._state in (EngineState.STARTING, EngineState.RESTARTING):
            self._launch()

    async def _hear_failure(self, child: EngineChild) -> None:
        """A process that ended by itself may have said why: its message may still be under way."""
        deadline = self._loop.time() + _FAREWELL_SECONDS
        while self._failure is None and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
            child.receive()

    def _give_up(self, error: TaktError) -> None:
        self._state = EngineState.DEAD
        if not self._started.done():
            self._started.set_exception(error)
        elif self._on_dead is not None:
            self._on_dead(str(error))

    async def _drain(self, timeout_seconds: float) -> None:
        self._idle.clear()
        self._note_idle()
        if timeout_seconds > 0 and self._state is EngineState.DRAINING:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._idle.wait()
            except TimeoutError:
                _log.warning("%d requests had not ended in time", len(self._streams))

    def _note_idle(self) -> None:
        if not self._streams:
            self._idle.set()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_UNAVAILABLE = {
    EngineState.STARTING: "the engine is starting",
    EngineState.READY: "the engine is gone",
    EngineState.RESTARTING: "the engine died and is starting again",
    EngineState.DRAINING: "the server is stopping",
    EngineState.DEAD: "the engine is dead",
}


def _as_accepted(config: EngineConfig) -> EngineConfig:
    """For a restart: targets that were accepted are not refused because steps take longer now."""
    return replace(config, scheduler=replace(config.scheduler, slo_force=True))


def _private_directory() -> Path:
    """A directory that only this user may enter (mode 0700), short enough for a socket's path."""
    directory = tempfile.mkdtemp(prefix="takt-")
    if len(directory) > _LONGEST_DIRECTORY:
        Path(directory).rmdir()
        directory = tempfile.mkdtemp(prefix="takt-", dir="/tmp")
    return Path(directory)


def _describe(return_code: int) -> str:
    if return_code >= 0:
        return f"exit code {return_code}"
    try:
        return signal.Signals(-return_code).name
    except ValueError:
        return f"signal {-return_code}"
