"""The Lua scripts, and the keys of one record."""

from __future__ import annotations

from importlib import resources
from typing import Any

from takt.gateway.store.redis_pipe import Script

PREFIX = "{takt}:gateway:"
"""The braces put all keys into one slot, so that a script may touch several on a cluster."""

FENCE = PREFIX + "fence"
DEAD = PREFIX + "dead"

_NAMES = (
    "claim",
    "confirm",
    "heartbeat",
    "begin_attempt",
    "end_attempt",
    "append",
    "finish",
    "read",
    "revive",
    "lapse",
    "purge",
)


def load_scripts() -> dict[str, Script]:
    """Scripts by name."""
    folder = resources.files("takt.gateway.store") / "scripts"
    prelude = (folder / "prelude.lua").read_text()
    return {name: Script.of(prelude + (folder / f"{name}.lua").read_text()) for name in _NAMES}


def keys_of(digest: str) -> list[str]:
    """Record, chunks, request, history, fence and dead letters, in the order of the prelude."""
    return [
        f"{PREFIX}record:{digest}",
        f"{PREFIX}chunks:{digest}",
        f"{PREFIX}request:{digest}",
        f"{PREFIX}history:{digest}",
        FENCE,
        DEAD,
    ]


def fields_of(flat: list[Any]) -> dict[str, bytes]:
    """HGETALL's answer inside a script: names and values in turn."""
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
