"""Undoes the compression of a body: gzip and deflate, as much at a time as fits a limit."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from takt.gateway.http.fields import Headers

DECODED = frozenset({"gzip", "x-gzip", "deflate"})
"""Content encodings that `Decoder` knows. Others pass as they are."""

MAX_PIECE_BYTES = 1_048_576

MAX_SLICE_BYTES = 16_384
"""Of what is decoded at a time: zlib copies all that it has not used yet, at each piece's end."""

MAX_MEMBERS = 1024
"""Of a gzip body. Empty ones are 20 bytes each, and the work of some thousand bytes."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_ZLIB_METHOD = 8


class BadEncodingError(Exception):
    """The body is not what its Content-Encoding says."""


def encoding_to_undo(headers: Headers) -> str | None:
    """One of `DECODED`; None if the body passes as it is, as one encoded several times does."""
    if "content-encoding" not in headers:
        return None
    encoding = headers.joined("content-encoding").lower()
    return encoding if encoding in DECODED else None


class Decoder:
    """Of one body. A caller with a limit stops between two pieces: a few bytes may hold gigabytes,
    and none of them is decoded before it is asked for."""

    def __init__(self, encoding: str) -> None:
        """`encoding` is one of `DECODED`."""
        self._is_gzip = encoding != "deflate"
        self._inflate: zlib._Decompress | None = None
        self._num_members = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of at most `MAX_PIECE_BYTES`. Raises `BadEncodingError`."""
        for at in range(0, len(data), MAX_SLICE_BYTES):
            yield from self._feed_slice(data[at : at + MAX_SLICE_BYTES])

    def end(self) -> None:
        """Raises `BadEncodingError` if the body ended too early; one of no bytes is whole."""
        if self._inflate is not None and not self._inflate.eof:
            raise BadEncodingError("the compressed body is not whole")

    def _feed_slice(self, data: bytes) -> Iterator[bytes]:
        has_more = False
        while data or has_more:
            inflate = self._inflate
            if inflate is None or inflate.eof:
                inflate = self._inflate = self._begin_member(data[0])
            try:
                piece = inflate.decompress(data, MAX_PIECE_BYTES)
            except zlib.error as error:
                raise BadEncodingError(str(error)) from None
            if piece:
                yield piece
            has_more = len(piece) == MAX_PIECE_BYTES and not inflate.eof
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail

    def _begin_member(self, first: int) -> zlib._Decompress:
        """gzip allows several. `first` is the first byte of this one."""
        if self._num_members and not self._is_gzip:
            raise BadEncodingError("bytes follow the compressed body")
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise BadEncodingError(f"it has more than {MAX_MEMBERS} members")
        # Some senders of `deflate` leave the wrapper out that RFC 9110 wants.
        has_wrapper = self._is_gzip or first & 0x0F == _ZLIB_METHOD
        return zlib.decompressobj(_GZIP_OR_ZLIB if has_wrapper else _RAW)
