"""Undoes the compression of a body: gzip and deflate, as much at a time as fits a limit."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

DECODED = frozenset({"gzip", "x-gzip", "deflate"})
"""Content encodings that `Decoder` knows. Others pass as they are."""

MAX_PIECE_BYTES = 1_048_576

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_ZLIB_METHOD = 8


class BadEncodingError(Exception):
    """The body is not what its Content-Encoding says."""


class Decoder:
    """Of one body. A caller with a limit stops between two pieces: a few bytes may hold gigabytes,
    and none of them is decoded before it is asked for."""

    def __init__(self, encoding: str) -> None:
        """`encoding` is one of `DECODED`."""
        self._is_gzip = encoding != "deflate"
        self._inflate: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of at most `MAX_PIECE_BYTES`. Raises `BadEncodingError`."""
        has_more = False
        while data or has_more:
            if self._inflate is None:
                self._inflate = zlib.decompressobj(self._window_bits(data[0]))
            try:
                piece = self._inflate.decompress(data, MAX_PIECE_BYTES)
            except zlib.error as error:
                raise BadEncodingError(str(error)) from None
            if piece:
                yield piece
            data = self._inflate.unconsumed_tail
            has_more = len(piece) == MAX_PIECE_BYTES and not self._inflate.eof
            if self._inflate.eof:
                data = self._inflate.unused_data
                if data and not self._is_gzip:
                    raise BadEncodingError("bytes follow the compressed body")
                if data:  # gzip allows another member
                    self._inflate = None

    def end(self) -> None:
        """Raises `BadEncodingError` if the body ended too early; one of no bytes is whole."""
        if self._inflate is not None and not self._inflate.eof:
            raise BadEncodingError("the compressed body is not whole")

    def _window_bits(self, first: int) -> int:
        """Some senders of `deflate` leave the wrapper out that RFC 9110 wants."""
        return _GZIP_OR_ZLIB if self._is_gzip or first & 0x0F == _ZLIB_METHOD else _RAW
