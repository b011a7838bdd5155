"""One engine process and the socket to it, seen from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from takt.config import EngineConfig
from takt.engine.host_share import HostShare
from takt.engine.messages import CommandMessage, EngineCommand, EngineEvent
from takt.engine.wire import (
    LaunchOrder,
    address,
    config_to_plain,
    event_decoder,
    order_path,
    pair_socket,
)

_log = logging.getLogger(__name__)

_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)
_MAX_MESSAGES_AT_ONCE = 64
"""Messages taken in one turn of the event loop, so that sockets of clients get theirs."""


class EngineChild:
    """Starts a process at once. `on_event` gets its messages of this epoch, in order.

    `on_exit` gets the return code (negative: the signal that ended it), once, after the messages
    that had arrived by then. Both are called by the event loop that made the child, whose thread
    must outlive it.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        directory: Path,
        epoch: int,
        config: EngineConfig,
        share: HostShare,
        context: zmq.Context[zmq.Socket[bytes]],
        on_event: Callable[[EngineEvent], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self.epoch = epoch
        self._on_event = on_event
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = event_decoder()
        self._order = order_path(directory, epoch)
        order = LaunchOrder(
            epoch,
            os.getpid(),
            logging.getLogger().getEffectiveLevel(),
            config_to_plain(config),
            share.placement,
            share.cpus,
        )
        self._order.write_bytes(self._encoder.encode(order))
        self._socket: zmq.Socket[bytes] | None = pair_socket(context)
        self._socket.bind(address(directory, epoch))
        self._socket_fd = int(self._socket.getsockopt(zmq.FD))
        # A process group of its own: a terminal's Ctrl-C is for the server to act on.
        self._process = subprocess.Popen(
            [*command, str(directory), str(epoch)], stdin=subprocess.DEVNULL, process_group=0
        )
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._socket_fd, self._read)
        self._loop.add_reader(self._pid_fd, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: EngineCommand) -> None:
        """Queues a command; it goes nowhere if the process is gone."""
        if self._socket is None:
            return
        payload = self._encoder.encode(CommandMessage(self.epoch, command))
        # Without a peer the socket takes nothing; `on_exit` is about to say so.
        with contextlib.suppress(zmq.Again):
            self._socket.send(payload, zmq.NOBLOCK)
        # Sending may swallow the edge that announces incoming messages.
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._read)

    def kill(self) -> None:
        self._process.kill()

    def receive(self) -> None:
        """Takes the messages that have arrived, without waiting."""
        self._read()

    def close(self) -> None:
        """Lets go of socket and files; the process must have ended."""
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket_fd)
        self._socket.close()
        self._socket = None
        self._order.unlink(missing_ok=True)

    def _read(self) -> None:
        for _ in range(_MAX_MESSAGES_AT_ONCE):
            # Asking first costs half of what a refusal does.
            if self._socket is None or not int(self._socket.getsockopt(_EVENTS)) & _POLLIN:
                return
            self._take(self._socket.recv(_NOBLOCK))
        # The descriptor tells of new messages only: what is left must be asked for.
        self._loop.call_soon(self._read)

    def _take(self, payload: bytes) -> None:
        try:
            event = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            _log.error("dropped a malformed message of the engine: %s", error)
            return
        if event.epoch == self.epoch:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("a message of the engine could not be handled")

    def _reap(self) -> None:
        self._loop.remove_reader(self._pid_fd)
        os.close(self._pid_fd)
        return_code = self._process.wait()
        self._read()
        self._on_exit(return_code)
