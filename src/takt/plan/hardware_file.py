"""Typed access to a TOML table; every mistake names the file and the field."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from takt.plan.errors import PlanInputError

_LARGEST = 2**63 - 1
"""TOML's own limit; Python's reader takes integers of any size."""
_MAX_SHOWN = 64


def read_toml(path: Path) -> Mapping[str, Any]:
    """Raises `PlanInputError` that names the file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise PlanInputError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError:
        raise PlanInputError(f"{path}: is not TOML that can be read: nested too deeply") from None
    except ValueError as error:
        # Text that is no UTF-8 and numbers of thousands of digits too.
        raise PlanInputError(f"{path}: is not TOML: {error}") from error


class Section:
    """One table of a file."""

    def __init__(self, path: Path, name: str, data: Mapping[str, Any]) -> None:
        self._path = path
        self.name = name
        self._data = data

    def error(self, key: str, what: str) -> PlanInputError:
        field = f"{self.name}.{key}" if self.name else key
        return PlanInputError(f"{self._path}: {field} {what}")

    def has(self, key: str) -> bool:
        return key in self._data

    def section(self, key: str) -> Section:
        value = self._data.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "is missing or no table")
        return Section(self._path, key, value)

    def sections(self, key: str, *, optional: bool = False) -> list[Section]:
        value = self._data.get(key, [] if optional else None)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, "is missing or no list of tables")
        return [Section(self._path, key, item) for item in value]

    def text(self, key: str) -> str:
        value = self._data.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, "is missing or no text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be a list of texts")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._data.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise self.error(key, f"must be a whole number of at least 1, got {_shown(value)}")
        return value

    def not_negative(self, key: str, default: float | None = None) -> float:
        value = self._data.get(key, default)
        if not _is_number(value) or value < 0:
            raise self.error(key, f"must be a number of at least 0, got {_shown(value)}")
        return float(value)

    def positive(self, key: str) -> float:
        value = self.not_negative(key)
        if value == 0:
            raise self.error(key, "must be above 0")
        return value

    def share(self, key: str) -> float:
        value = self.positive(key)
        if value > 1:
            raise self.error(key, f"is a share and at most 1, got {value}")
        return value

    def numbers(self, key: str) -> list[float]:
        value = self._data.get(key)
        if not isinstance(value, list) or not all(_is_number(item) for item in value):
            raise self.error(key, "must be a list of numbers")
        return [float(item) for item in value]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -_LARGEST <= value <= _LARGEST if isinstance(value, int) else math.isfinite(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
