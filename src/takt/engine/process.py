"""The engine process: builds a core, then takes commands between its steps.

Started as `python -m takt.engine.process DIRECTORY EPOCH` by `ProcessEngineClient`.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from takt.clock import Clock, MonotonicClock
from takt.config import EngineConfig
from takt.engine.core import EngineCore, StepResult
from takt.engine.garbage import GarbageCollector
from takt.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineEvent,
    EngineFailed,
    EngineReady,
    LoadProgress,
    OffloadBlocks,
    Shutdown,
    StepMessage,
)
from takt.engine.parentage import die_with_parent
from takt.engine.placement import raise_priority
from takt.engine.time_slice import DEFAULT_SLICE, set_time_slice
from takt.engine.wire import (
    LaunchOrder,
    address,
    command_decoder,
    config_from_plain,
    order_path,
    pair_socket,
)
from takt.errors import EngineDeadError, TaktError
from takt.scheduler.decode_batch import DecodeBatch

_log = logging.getLogger("takt.engine")

_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)

IDLE_MS = 20
"""An engine without work for so long uses the time to collect garbage."""

INPUT_BUDGET_NS = 1_000_000
"""Time that commands may take between two steps; what is left waits for the next gap."""

_FAREWELL_MS = 2000
"""Time for the last message to reach the client."""

OnProgress = Callable[[str, int, int], None]
MakeCore = Callable[[EngineConfig, Clock, OnProgress], EngineCore]


class EngineProcess:
    """The loop of one engine: blocks while it has nothing to do."""

    def __init__(self, socket: zmq.Socket[bytes], epoch: int, clock: Clock) -> None:
        self._socket = socket
        self._epoch = epoch
        self._clock = clock
        # Readable when something has happened to the socket that it was not asked about since.
        self._changed = select.poll()
        self._changed.register(int(socket.getsockopt(zmq.FD)), select.POLLIN)
        self._has_input = True
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = command_decoder()
        self._stopping = False
        self._unsent: StepResult | None = None
        self._told: DecodeBatch | None = None
        """The batch whose members the client knows."""
        self.collector = GarbageCollector(clock)

    def send(self, event: EngineEvent) -> None:
        self._socket.send(self._encoder.encode(event))

    def run(self, core: EngineCore, parent_pid: int) -> None:
        """Serves until a `Shutdown` comes or the parent is gone."""
        parent_fd = os.pidfd_open(parent_pid)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(parent_fd, zmq.POLLIN)
        for sentinel in core.sentinels:
            poller.register(sentinel, zmq.POLLIN)
        try:
            while not self._stopping:
                if not core.has_work:  # while there is some, the kernel ends us with the parent
                    self._send_result()
                    ready = self._wait(poller)
                    if parent_fd in ready:
                        return
                    if any(sentinel in ready for sentinel in core.sentinels):
                        raise EngineDeadError(core.ending())
                    self._has_input = True
                if self._has_input or self._changed.poll(0):
                    self._take_commands(core)
                if core.has_work and not self._stopping:
                    self._unsent = core.step(self._send_result)
                    if not self._unsent.is_plain:
                        self._send_result()
                    if self.collector.is_due:
                        self._send_result()
                        self.collector.between_steps()
        finally:
            self._send_result()
            os.close(parent_fd)
            self.collector.stop()

    def _send_result(self) -> None:
        """Sends what the last step brought, if that was not done yet.

        Plain tokens are sent when the next step has started, which other threads of the pool work
        on meanwhile; but before anything that may take longer than to schedule it.
        """
        result, self._unsent = self._unsent, None
        if result is not None:
            self.send(self._message(result))
            # To send may have swallowed what makes the descriptor readable.
            self._has_input = self._is_readable()

    def _message(self, result: StepResult) -> StepMessage:
        message = StepMessage(self._epoch, result.outputs, result.stats)
        batch = result.batch
        if batch is not None:
            message.token_ids = result.token_ids
            if batch is not self._told:
                self._told = batch
                message.members = [(r.request_id, r.choice) for r in batch.requests]
        return message

    def _wait(self, poller: zmq.Poller) -> dict[Any, int]:
        """What became ready: sockets and file descriptors."""
        ready = poller.poll(IDLE_MS)
        if not ready:
            self.collector.when_idle()
            ready = poller.poll()
        return dict(ready)

    def _take_commands(self, core: EngineCore) -> None:
        deadline_ns = 0
        self._has_input = False
        # Asking first costs half of what a refusal does.
        while not self._stopping and self._is_readable():
            self._send_result()
            deadline_ns = deadline_ns or self._clock.now_ns() + INPUT_BUDGET_NS
            self._take(core, self._socket.recv(_NOBLOCK))
            if core.has_work and self._clock.now_ns() >= deadline_ns:
                self._has_input = True
                return

    def _is_readable(self) -> bool:
        return bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)

    def _take(self, core: EngineCore, payload: bytes) -> None:
        try:
            message = self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TaktError) as error:
            _log.error("dropped a malformed message of %d bytes: %s", len(payload), error)
            return
        if message.epoch != self._epoch:
            _log.debug("dropped a message of epoch %d", message.epoch)
            return
        match message.command:
            case AddRequest() as request:
                core.add(request)
            case AbortRequests(request_ids=request_ids, choice=choice):
                core.abort(request_ids, choice)
            case OffloadBlocks(hot_share=hot_share):
                core.offload_cold(hot_share)
            case Shutdown():
                self._stopping = True


def main(arguments: list[str], make_core: MakeCore) -> int:
    """Runs an engine process to its end and returns the exit code."""
    started = time.monotonic()
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the server decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    directory, epoch = Path(arguments[0]), int(arguments[1])
    order = msgspec.msgpack.decode(order_path(directory, epoch).read_bytes(), type=LaunchOrder)
    die_with_parent(order.parent_pid)
    if order.placement is not None:
        # The server has left these CPUs, and what it starts would be where it is.
        os.sched_setaffinity(0, (*order.placement.engine, *order.placement.server))
    elif order.cpus is not None:
        os.sched_setaffinity(0, order.cpus)
    logging.basicConfig(level=order.log_level, format="%(levelname)s %(name)s: %(message)s")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    socket = pair_socket(context)
    socket.connect(address(directory, epoch))
    # The socket's thread keeps the server's short slice, the model's threads are to have long ones.
    set_time_slice(DEFAULT_SLICE)
    clock = MonotonicClock()
    process = EngineProcess(socket, epoch, clock)
    try:
        return _serve(process, order, clock, make_core, started)
    finally:
        socket.close(linger=_FAREWELL_MS)
        context.term()


def _serve(
    process: EngineProcess,
    order: LaunchOrder,
    clock: Clock,
    make_core: MakeCore,
    started: float,
) -> int:
    core = _load(process, order, clock, make_core)
    if isinstance(core, int):
        return core
    if order.placement is not None:
        # With several ranks this thread is pinned to some of them.
        cpus = sorted(os.sched_getaffinity(0) & set(order.placement.engine))
        _log.debug("priority: %s", raise_priority(cpus) or "as any other")
    process.collector.start()
    core.watch_gc(lambda: process.collector.total_ns)
    process.send(_ready(core, order.epoch, time.monotonic() - started))
    try:
        process.run(core, order.parent_pid)
    except EngineDeadError as error:
        _log.error("the engine died: %s", error)
        return 1
    except Exception:
        _log.exception("the engine died")
        return 1
    core.close()
    return 0


def _load(
    process: EngineProcess, order: LaunchOrder, clock: Clock, make_core: MakeCore
) -> EngineCore | int:
    """The core; or, after the server has been told why there is none, the exit code."""

    def on_progress(stage: str, done: int, total: int) -> None:
        process.send(LoadProgress(order.epoch, stage, done, total))

    try:
        config = config_from_plain(order.config)
        if order.placement is not None and config.parallel.num_ranks > 1:
            # Ranks are pinned to CPUs of these; the socket's thread may be anywhere.
            os.sched_setaffinity(0, order.placement.engine)
        return make_core(config, clock, on_progress)
    except EngineDeadError as error:
        # A rank was killed while it was loaded: nobody's mistake, and another start may go well.
        _log.error("the engine died while it started: %s", error)
        return 1
    except TaktError as error:
        process.send(EngineFailed(order.epoch, str(error), error.exit_code))
        return error.exit_code
    except MemoryError:
        process.send(EngineFailed(order.epoch, "there is not enough memory for the model", 1))
        return 1
    except Exception as error:
        _log.exception("the engine could not start")
        sentence = f"the engine could not start: {type(error).__name__}: {error}"
        process.send(EngineFailed(order.epoch, sentence, 1))
        return 1


def _ready(core: EngineCore, epoch: int, load_seconds: float) -> EngineReady:
    sizes = core.sizes
    return EngineReady(
        epoch=epoch,
        max_model_len=sizes.max_model_len,
        vocab_size=core.rules.vocab_size,
        num_kv_tokens=sizes.num_kv_tokens,
        kv_cache_bytes=sizes.kv_cache_bytes,
        kv_cache_dtype=sizes.kv.dtype.label,
        kv_block_size=sizes.kv.block_size,
        kv_num_blocks=list(sizes.num_blocks),
        kv_block_bytes=[sizes.kv.block_bytes(g) for g in range(len(sizes.num_blocks))],
        num_threads=core.num_threads,
        load_seconds=load_seconds,
        load=core.load(),
        precision=core.precision,
        pipeline=core.pipeline,
        kv_num_host_blocks=list(sizes.num_host_blocks),
        step_times=core.step_times,
    )


def _make_core(config: EngineConfig, clock: Clock, on_progress: OnProgress) -> EngineCore:
    from takt.engine.build import build_core
    from takt.engine.load import load_model

    return build_core(config, load_model(config, on_progress, is_replica=True), clock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _make_core))
