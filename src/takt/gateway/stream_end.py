"""Finds what ends an OpenAI stream: its end mark, or an event that tells of an error.

Both are held: the end mark until the answer is recorded, an error because the gateway decides what
follows it. Servers send `[DONE]` after an error too, so that alone makes no stream whole.
"""

from __future__ import annotations

import re

import msgspec

_DONE = (b"data: [DONE]", b"data:[DONE]")
_ERROR = (
    *(b'data: {"error"', b'data:{"error"', b'error: {"'),
    *(b'data: {"object":"error"', b'data: {"object": "error"'),
)
"""Beginnings of lines; the last two are of older servers."""

_MARKS = _DONE + _ERROR
_mark = re.compile(b"^(?:%s)" % b"|".join(re.escape(mark) for mark in _MARKS), re.MULTILINE)
_done_line = re.compile(rb"data: ?\[DONE\][ \t]*[\r\n]")

_EMPTY_LINES = (b"\n\n", b"\n\r\n", b"\r\r", b"\r\r\n")


class StreamEnd:
    """Splits a stream into what may be passed on and what is held."""

    def __init__(self) -> None:
        self.is_done = False
        self.error: bytes | None = None
        """The event that told of an error."""
        self._held = b""
        self._begins_line = True

    @property
    def held(self) -> bytes:
        """What was not passed on: the end mark and all after it, or the beginning of a mark."""
        return self._held

    @property
    def is_whole(self) -> bool:
        """The end mark has come with the end of its line."""
        return self.is_done and _done_line.match(self._held) is not None

    def feed(self, data: bytes) -> bytes:
        """The part of the stream so far that may be passed on now."""
        if self.is_done or self.error is not None:
            self._held += data
            return b""
        if self._held:
            data = self._held + data
            self._held = b""
        passed = b""
        while True:
            found = _mark.search(data, 0 if self._begins_line else 1)
            if found is None:
                return passed + self._pass(data, len(data) - self._possible_start(data))
            at = found.start()
            if found.group() in _DONE:
                self.is_done = True
                return passed + self._pass(data, at)
            end = data.find(b"\n", at) + 1
            if end == 0:
                return passed + self._pass(data, at)
            if _is_error(data[at:end]):
                self.error = data[at:end].rstrip() + b"\n\n"
                return passed + self._pass(data, at)
            passed += self._pass(data[:end], end)
            data = data[end:]

    def end(self) -> None:
        """The stream is over: what may have become an error event without its last line end."""
        if self.error is None and not self.is_done and _is_error(self._held):
            self.error = self._held.rstrip() + b"\n\n"

    def _pass(self, data: bytes, at: int) -> bytes:
        """`data` up to `at`; the rest is held."""
        passed = data[:at]
        self._held = data[at:]
        if passed:
            self._begins_line = passed.endswith(b"\n")
        return passed

    def _possible_start(self, data: bytes) -> int:
        """Length of the last line if it may yet become a mark."""
        at = data.rfind(b"\n") + 1
        if at == 0 and not self._begins_line:
            return 0
        line = data[at:]
        return len(line) if line and any(mark.startswith(line) for mark in _MARKS) else 0


def event_end(data: bytes) -> bytes:
    """What ends the line and the event that `data`, a stream's last four bytes or more, leaves
    open. A lone `\\r` is taken for half a line end."""
    if not data or data.endswith(_EMPTY_LINES):
        return b""
    if data.endswith(b"\r"):
        return b"\n" + event_end(data + b"\n")
    if data.endswith(b"\n"):
        return b"\r\n" if data.endswith(b"\r\n") else b"\n"
    return b"\n\n"


def has_open_data(stream: bytes) -> bool:
    """Whether it leaves an event open that has data already."""
    for line in reversed(stream.splitlines()):
        if not line:
            return False
        if line.startswith(b"data"):
            return True
    return False


def _is_error(line: bytes) -> bool:
    """Whether a line with an error's beginning tells of one: an event may have `"error": null`."""
    if not line.startswith(_ERROR):
        return False
    try:
        event = msgspec.json.decode(line.partition(b":")[2].strip())
    except (msgspec.MsgspecError, RecursionError):
        return True
    return bool(event.get("error") or event.get("object") == "error" or line.startswith(b"error"))
