"""From `--store` to a store."""

from __future__ import annotations

from pathlib import Path

from takt.errors import ConfigError
from takt.gateway.store.base import Store
from takt.gateway.store.sqlite import SqliteStore

_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


def check_exists(url: str) -> None:
    """Raises `ConfigError` if `url` names an SQLite file that is not there."""
    path = url.removeprefix("sqlite:///")
    if path and path != url and not Path(path).exists():
        raise ConfigError(f"there is no store at {path}")


def make_store(url: str, *, volatile: bool = False) -> Store:
    """A store that is not open yet.

    `sqlite:///PATH` (relative to the working directory; four slashes for an absolute path),
    `redis://`, `rediss://` (TLS) or `unix://` (a Redis's socket). Raises `ConfigError`.
    """
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        if not path:
            raise ConfigError("--store sqlite:///PATH names no file")
        return SqliteStore(Path(path))
    if url.startswith(_REDIS_SCHEMES):
        try:
            from takt.gateway.store.redis import RedisStore
        except ImportError:
            raise ConfigError(
                "--store with a Redis needs the extra: make install EXTRA=redis"
            ) from None
        return RedisStore(url, volatile=volatile)
    # Its beginning only: a mistyped scheme may be followed by a password.
    raise ConfigError(
        f"--store {url.partition(':')[0]!r} is none of: sqlite:///PATH, redis://HOST:PORT/DB, "
        "rediss:// or unix://"
    )
