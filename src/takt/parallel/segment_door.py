"""Hands a segment's file to processes of this host that are no children of its maker.

The door is a socket in the kernel's abstract namespace: it has no name in a file system that a
crash could leave behind, and only this host's network namespace reaches it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading

from takt.errors import EngineDeadError

_CREDENTIALS = struct.Struct("3i")
_FETCH_SECONDS = 30.0


class SegmentDoor:
    """Open until it is closed, for processes of this user. `fd` stays the caller's to close."""

    def __init__(self, fd: int) -> None:
        self.name = f"takt-{secrets.token_hex(16)}"
        self._fd = os.dup(fd)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, name="takt-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing alone would leave the thread in accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        os.close(self._fd)

    def _serve(self) -> None:
        while True:
            try:
                guest, _ = self._socket.accept()
            except OSError:
                return
            with guest, contextlib.suppress(OSError):
                if _user_of(guest) == os.geteuid():
                    socket.send_fds(guest, [b"segment"], [self._fd])


def fetch_segment(door: str) -> int:
    """A descriptor of the segment behind a door, to be closed by the caller."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
        guest.settimeout(_FETCH_SECONDS)
        try:
            guest.connect(f"\0{door}")
            _, fds, _, _ = socket.recv_fds(guest, 64, 1)
        except OSError as error:
            raise EngineDeadError(f"the shared memory of this host is gone: {error}") from error
    if not fds:
        raise EngineDeadError("the shared memory of this host belongs to another user")
    return fds[0]


def _user_of(guest: socket.socket) -> int:
    raw = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return int(user)
