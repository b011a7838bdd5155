"""One-way connections between hosts: ZeroMQ over TCP, each with a name and one reader.

A connection that breaks is never made again: whoever is behind it has lost its place in the steps.
Its end is seen within seconds, by heartbeats where the other host says nothing at all.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq
from zmq.utils.monitor import parse_monitor_message

from takt.errors import ConfigError, EngineDeadError

CONNECT_SECONDS = 10.0
_HEARTBEAT_MS = 500
_SILENCE_MS = 3000
"""A host that answers no heartbeat for so long is gone."""

_ACCEPTED = int(zmq.EVENT_ACCEPTED)
_ESTABLISHED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_BROKEN = int(zmq.EVENT_DISCONNECTED)


class LinkHub:
    """The connections of one process, and a thread that tells when one is lost.

    `ip` is this host's address towards the others. `token` is known to the processes of one engine
    alone: a connection that does not begin with it is refused.
    """

    def __init__(self, ip: str, token: bytes, on_lost: Callable[[str], None]) -> None:
        self._ip = ip
        self._token = token
        self._on_lost = on_lost
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._monitors: list[_Monitor] = []
        self.stop_fd = os.eventfd(0)
        """Readable once nothing more is to be waited for."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def receiver(self, name: str, max_bytes: int) -> LinkReceiver:
        """Listens on a free port of this host for messages of at most `max_bytes`."""
        socket, monitor = self._socket(name)
        socket.setsockopt(zmq.MAXMSGSIZE, max(max_bytes, len(self._token)))
        host = f"[{self._ip}]" if ":" in self._ip else self._ip
        socket.bind(f"tcp://{host}:*")
        return LinkReceiver(socket, monitor, self._token, self.stop_fd, max_bytes)

    def sender(self, name: str, address: str) -> LinkSender:
        """Connects to a receiver; raises `ConfigError` if it cannot be reached."""
        socket, monitor = self._socket(name)
        socket.connect(address)
        if not monitor.wait_established():
            raise ConfigError(
                f"{self._ip} cannot reach {address} within {CONNECT_SECONDS:g} s: hosts of one "
                "engine need all TCP ports between them open"
            )
        return LinkSender(name, socket, self._token)

    def watch(self) -> None:
        """From now on a lost connection is told, once, with a sentence."""
        self._thread = threading.Thread(target=self._watch, name="takt-links", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends all waits, now and later."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self.stop_fd, 1)

    def close(self) -> None:
        """Ends all connections; no thread may use one any more. May be called again."""
        if self._is_closed:
            return
        self.stop()
        if self._thread is not None:
            self._thread.join()
        for socket in self._sockets:
            socket.disable_monitor()
            socket.close()
        for monitor in self._monitors:
            monitor.socket.close()
        self._context.term()
        with self._lock:
            self._is_closed = True
            os.close(self.stop_fd)

    def _socket(self, name: str) -> tuple[zmq.Socket[bytes], _Monitor]:
        socket = self._context.socket(zmq.PAIR)
        socket.set_hwm(0)  # what may be under way is bounded by the steps in flight
        socket.linger = 0
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        socket.setsockopt(zmq.IPV6, int(":" in self._ip))
        monitor = _Monitor(name, socket.get_monitor_socket(_ACCEPTED | _ESTABLISHED | _BROKEN))
        self._sockets.append(socket)
        self._monitors.append(monitor)
        return socket, monitor

    def _watch(self) -> None:
        poller = zmq.Poller()
        poller.register(self.stop_fd, zmq.POLLIN)
        monitors: dict[Any, _Monitor] = {each.socket: each for each in self._monitors}
        for socket in monitors:
            poller.register(socket, zmq.POLLIN)
        while True:
            for ready, _ in poller.poll():
                if ready == self.stop_fd:
                    return
                if monitors[ready].tells_end():
                    self._on_lost(monitors[ready].name)
                    return


class _Monitor:
    """What happens to one socket's connections."""

    def __init__(self, name: str, socket: zmq.Socket[bytes]) -> None:
        self.name = name
        self.socket = socket
        self._peer: int | None = None
        """Number of the connection; strangers who knock later have others. None: our own."""

    def wait_established(self) -> bool:
        """False if no connection is made in time."""
        while self.socket.poll(int(CONNECT_SECONDS * 1000)):
            event, number = self._next()
            if event == _ACCEPTED:
                self._peer = number
            else:
                return event == _ESTABLISHED
        return False

    def tells_end(self) -> bool:
        """Takes an event; whether the connection is lost."""
        event, number = self._next()
        return event == _BROKEN and self._peer in (None, number)

    def _next(self) -> tuple[int, int]:
        message: Any = parse_monitor_message(self.socket.recv_multipart())
        return int(message["event"]), int(message["value"])


class LinkReceiver:
    """The end that listens. `address` is for the other one."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        monitor: _Monitor,
        token: bytes,
        stop_fd: int,
        max_bytes: int,
    ) -> None:
        self._socket = socket
        self._monitor = monitor
        self._token = token
        self._buffer = np.zeros(max_bytes, dtype=np.uint8)
        self._memory = self._buffer.data
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(stop_fd, zmq.POLLIN)

    def accept(self) -> None:
        """Returns once the other end has shown its token; nobody else is heard any more."""
        name = self._monitor.name
        if not self._monitor.wait_established() or not self._socket.poll(
            int(CONNECT_SECONDS * 1000)
        ):
            raise ConfigError(f"nobody has connected to {self.address} ({name})")
        if not hmac.compare_digest(self._socket.recv(), self._token):
            raise ConfigError(f"a stranger has connected to {self.address} ({name})")

    def receive(self) -> np.ndarray | None:
        """The next message as uint8 `[num_bytes]`, there until the one after; None once waits
        were ended."""
        events = dict(self._poller.poll())
        if len(events) > 1 or self._socket not in events:
            return None
        return self._buffer[: self._socket.recv_into(self._memory)]


class LinkSender:
    """The end that connects; for one thread at a time."""

    def __init__(self, name: str, socket: zmq.Socket[bytes], token: bytes) -> None:
        self._name = name
        self._socket = socket
        self.send(np.frombuffer(token, dtype=np.uint8))

    def send(self, payload: np.ndarray) -> None:
        """Queues a copy of contiguous uint8; never blocks. Raises `EngineDeadError` once the
        connection is lost."""
        try:
            self._socket.send(payload.data, zmq.NOBLOCK)
        except zmq.ZMQError:
            # Queues have no limit: only a socket without a peer, or one that is closed, takes
            # nothing.
            raise EngineDeadError(lost(self._name)) from None


def lost(name: str) -> str:
    """The sentence for a connection that has ended."""
    return f"the connection for {name} is lost"
