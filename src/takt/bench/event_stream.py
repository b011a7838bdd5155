"""Server-sent events out of the pieces in which a body comes."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 << 20


class EventTooLargeError(Exception):
    """An event without end."""


class EventSplitter:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def has_rest(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._rest.strip())

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes; comments and other fields are skipped.

        Raises `EventTooLargeError`.
        """
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *blocks, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLargeError
        return [event for block in blocks if (event := _data_of(block)) is not None]


def _data_of(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:  # how every server writes them
        return block[6:]
    lines = [
        line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
