"""A message's header fields, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

MAX_HEAD_BYTES = 32_768
"""Of a request's or an answer's first line and fields together."""

Fields = Iterable[tuple[str, str]]

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Headers(Mapping[str, str]):
    """Found by name, whatever its case; of several fields of a name the first counts.

    Bytes that are no UTF-8 stand as lone surrogates in values.
    """

    __slots__ = ("_first", "pairs")

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        """All fields, in the order and with the names they came with."""
        self._first: dict[str, str] = {}
        for name, value in pairs:
            self._first.setdefault(name.lower(), value)

    def __getitem__(self, name: str) -> str:
        return self._first[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._first

    def get(self, name: str, default: Any = None) -> Any:
        return self._first.get(name.lower(), default)

    def count(self, name: str) -> int:
        lowered = name.lower()
        if len(self._first) == len(self.pairs):
            return int(lowered in self._first)
        return sum(one.lower() == lowered for one, _ in self.pairs)

    def joined(self, name: str) -> str:
        """The values of all fields of a name as one list, which is what they mean together; empty
        if there is none."""
        lowered = name.lower()
        if len(self._first) == len(self.pairs):
            return self._first.get(lowered, "")
        return ", ".join(value for one, value in self.pairs if one.lower() == lowered)


class FieldReader:
    """Collects what a parser finds of one message's head."""

    __slots__ = ("num_bytes", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.num_bytes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.num_bytes += len(name) + len(value) + 4
        self.pairs.append((name.decode("ascii"), value.decode("utf-8", "surrogateescape")))


def head_bytes(first_line: str, fields: Fields, last_lines: str = "") -> bytes:
    """A message's head. `last_lines` are whole lines, each with its end.

    Raises `ValueError` if a field would end a line: what follows would be another message's.
    """
    lines = [f"{name}: {value}\r\n" for name, value in fields]
    text = f"{first_line}\r\n{''.join(lines)}{last_lines}\r\n"
    num_lines = len(lines) + last_lines.count("\n") + 2
    if text.count("\n") != num_lines or text.count("\r") != num_lines:
        raise ValueError("a header field holds a line end")
    return text.encode()


def status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}"


def is_chunked_only(headers: Headers) -> bool:
    """Whether the body's transfer is coded in chunks and in no other way: no other is undone here.
    True as well if there is no such field."""
    coding = headers.get("transfer-encoding")
    return coding is None or headers.joined("transfer-encoding").lower() == "chunked"


def has_no_body(status: int) -> bool:
    """Whether an answer of this status never has one."""
    return status < 200 or status in (204, 304)
