"""Finds the tokenizer of an open model."""

from __future__ import annotations

from pathlib import Path

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.base import Checkpoint, Tokenizer
from takt.loading.tokenizer_gguf import gguf_stop_ids, gguf_tokenizer
from takt.loading.tokenizer_json import json_tokenizer


def load_tokenizer(checkpoint: Checkpoint, override: str | None = None) -> Tokenizer:
    """The model's own tokenizer, or the tokenizer.json (or its directory) that `override` names.

    Raises `ModelError` naming the file and field, `UnsupportedModelError` for an unknown kind.
    """
    metadata = checkpoint.metadata
    if override is not None:
        given = Path(override).expanduser()
        file = given / "tokenizer.json" if given.is_dir() else given
        return json_tokenizer(file, _config(checkpoint), metadata.get("tokenizer.chat_template"))
    if checkpoint.format == "gguf":
        return gguf_tokenizer(checkpoint.path, metadata)
    file = checkpoint.path / "tokenizer.json"
    if not file.exists():
        if (checkpoint.path / "tokenizer.model").exists():
            raise UnsupportedModelError(
                f"{checkpoint.path}: has only a tokenizer.model; --tokenizer takes the path of "
                "the model's tokenizer.json"
            )
        raise ModelError(f"{file}: no such file; --tokenizer takes the path of another")
    return json_tokenizer(file, metadata)


def load_eos_token_ids(checkpoint: Checkpoint, override: str | None = None) -> frozenset[int]:
    """`load_tokenizer(...).eos_token_ids`, without making the tokenizer where that can be."""
    if checkpoint.format == "gguf" and override is None:
        return gguf_stop_ids(checkpoint.path, checkpoint.metadata)
    return load_tokenizer(checkpoint, override).eos_token_ids


def _config(checkpoint: Checkpoint) -> dict[str, object]:
    """A GGUF file's ids under the names config.json gives them; of the others as they are."""
    if checkpoint.format != "gguf":
        return dict(checkpoint.metadata)
    ends = [
        checkpoint.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")
    ]
    return {
        "bos_token_id": checkpoint.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [token_id for token_id in ends if token_id is not None],
    }
