"""The alphabet of byte-level BPE: every byte spelt as one printable character."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    """Printable Latin-1 spells itself; the other bytes take code points from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    spelling.update({chr(256 + index): byte for index, byte in enumerate(rest)})
    return spelling


BYTE_OF_CHARACTER = _alphabet()


def spelt_bytes(token: str) -> bytes:
    """Bytes that a token of a byte-level vocabulary stands for.

    A token with a character outside the alphabet was put into the vocabulary as plain text.
    """
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
