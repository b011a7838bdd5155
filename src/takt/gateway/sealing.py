"""Bodies at rest: as they are, encrypted, or not at all."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import Protocol

from takt.errors import ConfigError, TaktError

KEY_BYTES = 32
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12
_PLAIN, _ENCRYPTED = b"\x00", b"\x01"


class SealError(TaktError):
    """A stored body that cannot be read with the keys at hand."""


class Sealer(Protocol):
    keeps_bodies: bool
    secret: bytes | None
    """For keyed hashes of bodies."""

    def seal(self, digest: str, data: bytes) -> bytes:
        """`data` in the form in which it is stored under the record `digest`."""
        ...

    def unseal(self, digest: str, data: bytes) -> bytes:
        """Raises `SealError`."""
        ...


class PlainSealer:
    secret: bytes | None = None

    def __init__(self, *, keeps_bodies: bool = True) -> None:
        self.keeps_bodies = keeps_bodies

    def seal(self, digest: str, data: bytes) -> bytes:
        return _PLAIN + data

    def unseal(self, digest: str, data: bytes) -> bytes:
        if data[:1] != _PLAIN:
            raise SealError("the stored body is encrypted; start with --encryption-key-file")
        return data[1:]


class EncryptingSealer:
    """AES-256-GCM, bound to the record: a body moved to another record does not open.

    The first key encrypts, each of them decrypts; so a key is changed by putting a new one first.
    """

    keeps_bodies = True

    def __init__(self, keys: list[bytes]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        self._current = _key_id(keys[0])
        self.secret: bytes | None = hashlib.sha256(b"fingerprint\0" + keys[-1]).digest()

    def seal(self, digest: str, data: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._ciphers[self._current].encrypt(nonce, data, digest.encode())
        return _ENCRYPTED + self._current + nonce + sealed

    def unseal(self, digest: str, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if data[:1] == _PLAIN:
            return data[1:]
        at = 1 + _KEY_ID_BYTES
        cipher = self._ciphers.get(data[1:at])
        if cipher is None:
            raise SealError("the stored body was encrypted with a key that is not in the key file")
        nonce, sealed = data[at : at + _NONCE_BYTES], data[at + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, sealed, digest.encode())
        except InvalidTag:
            raise SealError("the stored body was altered") from None


def make_sealer(bodies_at_rest: str, key_file: str | None) -> Sealer:
    """From `--bodies-at-rest` and `--encryption-key-file`. Raises `ConfigError`."""
    if bodies_at_rest == "encrypted":
        if key_file is None:
            raise ConfigError("--bodies-at-rest encrypted needs --encryption-key-file")
        try:
            return EncryptingSealer(read_keys(Path(key_file)))
        except ImportError:
            raise ConfigError(
                "--bodies-at-rest encrypted needs the package cryptography: "
                "make install EXTRA=gateway"
            ) from None
    if key_file is not None:
        raise ConfigError("--encryption-key-file is given, but not --bodies-at-rest encrypted")
    return PlainSealer(keeps_bodies=bodies_at_rest == "plain")


def read_keys(path: Path) -> list[bytes]:
    """Keys of 32 bytes in base64, one a line, the newest first. Raises `ConfigError`."""
    try:
        lines = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {path} cannot be read: {error}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        try:
            key = base64.b64decode(line, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the key file {path}, key {number}: not {KEY_BYTES} bytes in base64")
        keys.append(key)
    if not keys:
        raise ConfigError(f"the key file {path} holds no key")
    return keys


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"key id\0" + key).digest()[:_KEY_ID_BYTES]
