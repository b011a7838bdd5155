"""A field that is a flag, and what is checked of its value."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from takt.errors import ConfigError


def option(default: Any, help_text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **extra})


def check_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= 1


def check_choices(options: Any) -> None:
    """Raises `ConfigError` for a field whose value is none of its choices."""
    for f in fields(options):
        choices = f.metadata.get("choices")
        value = getattr(options, f.name)
        if choices is not None and value not in choices:
            known = ", ".join(str(c) for c in choices)
            raise ConfigError(f"--{f.name.replace('_', '-')} {value!r} is not one of: {known}")
