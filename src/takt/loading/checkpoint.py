"""Opens a model by what its path holds: a GGUF file or a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

from takt.errors import ModelError
from takt.loading.base import Checkpoint
from takt.loading.directory import SafetensorsCheckpoint
from takt.loading.gguf import GGUFCheckpoint


def open_checkpoint(path: Path, load_format: str = "auto") -> Checkpoint:
    """Opens `path` as `load_format`: auto, gguf or safetensors.

    A directory without a config.json stands for the one GGUF file in it. Raises `ModelError`
    naming the file and the field that is wrong.
    """
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    if load_format == "auto":
        is_directory = path.is_dir() and ((path / "config.json").exists() or not _gguf_files(path))
        load_format = "safetensors" if is_directory else "gguf"
    if load_format == "gguf":
        return GGUFCheckpoint(_gguf_file(path) if path.is_dir() else path)
    if load_format != "safetensors":
        raise ModelError(f"load format {load_format!r} is not one of: auto, gguf, safetensors")
    if not path.is_dir():
        raise ModelError(f"{path}: safetensors models are directories with a config.json")
    return SafetensorsCheckpoint(path)


def _gguf_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.gguf"))


def _gguf_file(path: Path) -> Path:
    files = _gguf_files(path)
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ModelError(f"{path}: name one GGUF file; the directory has: {names}")
    return files[0]
