"""Opens a model by what its path holds: a GGUF file or a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

from takt.loading.base import Checkpoint
from takt.loading.gguf import GGUFCheckpoint


def open_checkpoint(path: Path, load_format: str = "auto") -> Checkpoint:
    """Opens `path` as `load_format`: auto, gguf or safetensors.

    Raises `ModelError` naming the file and the field that is wrong.
    """
    return GGUFCheckpoint(path)
