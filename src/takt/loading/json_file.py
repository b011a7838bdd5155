"""JSON files beside the weights, read with a limit on their size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from takt.errors import ModelError

_MAX_CONFIG_BYTES = 64 << 20
"""The largest in use, weight maps of models with many experts, stay under 16 MB."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises `ModelError` naming the file where it is too big or no JSON object."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_CONFIG_BYTES:
        raise ModelError(f"{path}: is over {_MAX_CONFIG_BYTES} bytes")
    return parse_json_object(data, str(path))


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """A name that comes twice in one object is an error, as is anything but an object outside."""
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    raise ValueError(f"the name {name!r} comes twice in one object")
