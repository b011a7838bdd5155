"""Reads a model's configuration from either format's metadata."""

from __future__ import annotations

from takt.errors import ModelError
from takt.loading.base import Checkpoint
from takt.models.architecture import LayerConfig, ModelConfig
from takt.models.gguf_config import read_gguf_config
from takt.models.hf_config import read_hf_config

__all__ = ["LayerConfig", "ModelConfig", "read_model_config"]


def read_model_config(checkpoint: Checkpoint) -> ModelConfig:
    """Reads the architecture and its sizes from a checkpoint's metadata.

    Raises `UnsupportedModelError` for an architecture or a feature that is not implemented, and
    `ModelError` for metadata that is missing or contradicts itself; both name the file and field.
    """
    read = read_gguf_config if checkpoint.format == "gguf" else read_hf_config
    config = read(checkpoint)
    _check_sizes(checkpoint, config)
    return config


def _check_sizes(checkpoint: Checkpoint, config: ModelConfig) -> None:
    for wrong, sentence in (
        (
            config.num_heads % config.num_kv_heads,
            f"{config.num_heads} attention heads cannot share {config.num_kv_heads} KV heads",
        ),
        (config.head_dim % 2, f"head_dim is {config.head_dim}; rope needs an even number"),
        (
            any(layer.window is not None and layer.window < 1 for layer in config.layers),
            "sliding_window must be at least 1",
        ),
    ):
        if wrong:
            raise ModelError(f"{checkpoint.path}: {sentence}")
