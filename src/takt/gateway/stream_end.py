"""Finds the end mark of an OpenAI stream, which is held until the answer is recorded."""

from __future__ import annotations

DONE = b"data: [DONE]"

ERROR_START = b'data: {"error"'


class StreamEnd:
    """Splits a stream into what may be passed on and, from `data: [DONE]` on, what is held."""

    def __init__(self) -> None:
        self.is_done = False
        self._held = b""
        self._begins_line = True

    @property
    def held(self) -> bytes:
        """What was not passed on: the end mark and all after it."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """The part of the stream so far that may be passed on now."""
        if self.is_done:
            self._held += data
            return b""
        data = self._held + data
        self._held = b""
        at = self._find(data)
        if at is not None:
            self.is_done = True
            self._held = data[at:]
            return data[:at]
        keep = self._possible_start(data)
        self._held = data[len(data) - keep :] if keep else b""
        passed = data[: len(data) - keep]
        if passed:
            self._begins_line = passed.endswith(b"\n")
        return passed

    def _find(self, data: bytes) -> int | None:
        if self._begins_line and data.startswith(DONE):
            return 0
        at = data.find(b"\n" + DONE)
        return None if at < 0 else at + 1

    def _possible_start(self, data: bytes) -> int:
        """Length of the last line if it may yet become the end mark."""
        at = data.rfind(b"\n") + 1
        if at == 0 and not self._begins_line:
            return 0
        line = data[at:]
        return len(line) if line and DONE.startswith(line) else 0
