"""Typed access to a checkpoint's metadata, with errors that name the file and the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from takt.errors import ModelError, UnsupportedModelError

MAX_SIZE = 2**31 - 1
"""Sizes are kept in 32 bits by everything that computes with them."""


class Metadata:
    """Reads fields of one file's metadata; a default makes a field optional, None included.

    A field that is null counts as absent.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.prefix = prefix
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(self.prefix + name) is not None

    def get(self, name: str) -> Any:
        """The raw value, None if it is absent."""
        return self._values.get(self.prefix + name)

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.error(name, f"must be a whole number of 1 to {MAX_SIZE}, got {value!r}")
        return value

    def optional_size(self, name: str) -> int | None:
        return self.size(name) if self.has(name) else None

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"must be a number, got {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise self.error(name, f"must be a finite number above 0, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, got {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, got {value!r}")
        return value

    def section(self, name: str) -> Metadata:
        """An object inside this one; empty if it is absent."""
        value = self._values.get(self.prefix + name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, f"must be an object, got {value!r}")
        nested = {f"{self.prefix}{name}.{key}": item for key, item in value.items()}
        return Metadata(self.path, nested, f"{self.prefix}{name}.")

    def names(self) -> list[str]:
        """Names of the fields under this prefix, without it."""
        start = len(self.prefix)
        return [key[start:] for key in self._values if key.startswith(self.prefix)]

    def error(self, name: str, sentence: str) -> ModelError:
        return ModelError(f"{self.path}: {self.prefix}{name} {sentence}")

    def unsupported(self, name: str, sentence: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.path}: {self.prefix}{name} {sentence}")

    def require_neutral(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuses features that are not implemented: each field is absent or a listed value."""
        for name, allowed in neutral.items():
            value = self._values.get(self.prefix + name)
            if value is None or any(value == a and type(value) is type(a) for a in allowed):
                continue
            shown = repr(value)
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            raise self.unsupported(name, f"= {shown} asks for a feature that is not supported")

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(self.prefix + name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "is missing")
        return default
