"""GGUF files that hold nothing but a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_bytes as g

from takt.loading.base import Tokenizer
from takt.loading.checkpoint import open_checkpoint
from takt.loading.tokenizer import load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write_tokenizer(path: Path, fields: dict[str, Any]) -> Path:
    """`fields` are keys below `tokenizer.ggml.` and, with their full name, others."""
    keys: list[tuple[str | bytes, bytes]] = [("general.architecture", g.text("llama"))]
    for name, value in fields.items():
        key = name if name.startswith("tokenizer.") else f"tokenizer.ggml.{name}"
        keys.append((key, _value(value)))
    path.write_bytes(g.GgufFile(keys=keys).build())
    return path


def read_tokenizer(path: Path, fields: dict[str, Any], override: str | None = None) -> Tokenizer:
    checkpoint = open_checkpoint(write_tokenizer(path, fields))
    try:
        return load_tokenizer(checkpoint, override)
    finally:
        checkpoint.close()


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return g.scalar("bool", value)
    if isinstance(value, int):
        return g.scalar("u32", value)
    if isinstance(value, str):
        return g.text(value)
    kind = {str: "string", int: "i32", float: "f32"}[type(value[0])]
    return g.array(kind, value)
