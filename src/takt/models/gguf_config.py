"""Configurations from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Callable

from takt.errors import UnsupportedModelError
from takt.loading.base import Checkpoint
from takt.models.architecture import LayerConfig, ModelConfig, uniform_layers, windowed_layers
from takt.models.metadata import Metadata
from takt.models.rope import RopeConfig

_ROPE_DIVISORS = "rope_freqs.weight"

_GEMMA_LOCAL_THETA = 10_000.0
_GEMMA_PATTERN = 6
"""Every sixth layer is global; converters write it only where it differs."""
_GEMMA_27B_LAYERS = 62
"""GGUF has no field for Gemma 3's query scale: head_dim ** -0.5 but for the 27B, which is known by
its number of layers and scales by its width per head, 5376 / 32, instead."""

_READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scaling.type",
        "vocab_size",
    }
)
_ALSO_READ = {
    "llama": {"attention.sliding_window"},
    "gemma3": {
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    },
}
_HARMLESS = frozenset(
    {
        # About how the model was trained or the file was laid out.
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "tensor_data_layout",
    }
)
_NEUTRAL = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "leading_dense_block_count": (0,),
    "use_parallel_residual": (False,),
}


def read_gguf_config(checkpoint: Checkpoint) -> ModelConfig:
    metadata = Metadata(checkpoint.path, checkpoint.metadata)
    architecture = metadata.text("general.architecture")
    read = _ARCHITECTURES.get(architecture)
    if read is None:
        known = ", ".join(_ARCHITECTURES)
        raise metadata.unsupported(
            "general.architecture", f"= {architecture!r} is not known; known are: {known}"
        )
    fields = Metadata(checkpoint.path, checkpoint.metadata, architecture + ".")
    fields.require_neutral(_NEUTRAL)
    known_fields = _READ | _HARMLESS | _NEUTRAL.keys() | _ALSO_READ.get(architecture, set())
    for name in fields.names():
        if name not in known_fields:
            raise fields.unsupported(name, "names a feature that is not supported")
    return read(checkpoint, fields, architecture)


def _llama(checkpoint: Checkpoint, fields: Metadata, architecture: str) -> ModelConfig:
    return _plain(checkpoint, fields, architecture, qk_interleaved=True)


def _qwen2(checkpoint: Checkpoint, fields: Metadata, architecture: str) -> ModelConfig:
    return _plain(checkpoint, fields, architecture)


def _qwen3(checkpoint: Checkpoint, fields: Metadata, architecture: str) -> ModelConfig:
    return _plain(checkpoint, fields, architecture, qk_norm=True)


def _gemma3(checkpoint: Checkpoint, fields: Metadata, architecture: str) -> ModelConfig:
    num_layers = fields.size("block_count")
    hidden_size = fields.size("embedding_length")
    width = fields.size("attention.key_length")
    if num_layers == _GEMMA_27B_LAYERS:
        width = hidden_size // fields.size("attention.head_count")
    local = RopeConfig(fields.positive("rope.freq_base_swa", _GEMMA_LOCAL_THETA))
    pattern = fields.size("attention.sliding_window_pattern", _GEMMA_PATTERN)
    layers = windowed_layers(
        [(i + 1) % pattern != 0 for i in range(num_layers)],
        fields.size("attention.sliding_window"),
        _rope(checkpoint, fields, default_theta=1_000_000.0),
        local,
    )
    return _plain(
        checkpoint,
        fields,
        architecture,
        layers=layers,
        activation="gelu_tanh",
        attention_scale=1.0 / math.sqrt(width),
        qk_norm=True,
        post_norms=True,
        scale_embedding=True,
        attention_softcap=_optional(fields, "attn_logit_softcapping"),
        logit_softcap=_optional(fields, "final_logit_softcapping"),
    )


def _plain(
    checkpoint: Checkpoint,
    fields: Metadata,
    architecture: str,
    *,
    layers: tuple[LayerConfig, ...] | None = None,
    activation: str = "silu",
    attention_scale: float | None = None,
    attention_softcap: float = 0.0,
    logit_softcap: float = 0.0,
    scale_embedding: bool = False,
    qk_norm: bool = False,
    post_norms: bool = False,
    qk_interleaved: bool = False,
) -> ModelConfig:
    """What all architectures share; norms' offsets are already in a GGUF file's weights."""
    hidden_size = fields.size("embedding_length")
    num_heads = fields.size("attention.head_count")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    if layers is None:
        rope = _rope(checkpoint, fields, default_theta=10_000.0)
        num_layers = fields.size("block_count")
        window = fields.optional_size("attention.sliding_window")
        layers = (
            uniform_layers(num_layers, rope)
            if window is None
            else windowed_layers([True] * num_layers, window, rope, rope)
        )
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(checkpoint, fields),
        hidden_size=hidden_size,
        intermediate_size=fields.size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.size("context_length"),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        norm_offset=0.0,
        activation=activation,
        attention_scale=attention_scale or 1.0 / math.sqrt(head_dim),
        attention_softcap=attention_softcap,
        logit_softcap=logit_softcap,
        scale_embedding=scale_embedding,
        qk_norm=qk_norm,
        post_norms=post_norms,
        qk_interleaved=qk_interleaved,
        qkv_bias=None,
        output_bias=None,
        mlp_bias=None,
        tie_word_embeddings="output.weight" not in checkpoint.tensors,
        layers=layers,
    )


def _head_dim(fields: Metadata, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.optional_size("attention.key_length")
    if head_dim is None:
        if hidden_size % num_heads:
            raise fields.error(
                "embedding_length", f"= {hidden_size} is no multiple of {num_heads} heads"
            )
        head_dim = hidden_size // num_heads
    for name in ("attention.value_length", "rope.dimension_count"):
        other = fields.size(name, head_dim)
        if other != head_dim:
            raise fields.unsupported(
                name, f"= {other} differs from the key length, {head_dim}: not supported"
            )
    return head_dim


def _rope(checkpoint: Checkpoint, fields: Metadata, *, default_theta: float) -> RopeConfig:
    kind = fields.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise fields.unsupported(
            "rope.scaling.type", f"= {kind!r} is not supported; supported are: none, linear"
        )
    return RopeConfig(
        theta=fields.positive("rope.freq_base", default_theta),
        linear_factor=fields.positive("rope.scaling.factor", 1.0) if kind == "linear" else 1.0,
        divisors_tensor=_ROPE_DIVISORS if _ROPE_DIVISORS in checkpoint.tensors else None,
    )


def _vocab_size(checkpoint: Checkpoint, fields: Metadata) -> int:
    """Rows of the embedding; the metadata's own count is optional and must agree."""
    table = checkpoint.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise UnsupportedModelError(
            f"{checkpoint.path}: tensor token_embd.weight is missing or no matrix"
        )
    rows = table.shape[0]
    if fields.size("vocab_size", rows) != rows:
        raise fields.error(
            "vocab_size",
            f"= {fields.size('vocab_size')} but token_embd.weight has {rows} rows",
        )
    return rows


def _optional(fields: Metadata, name: str) -> float:
    return fields.positive(name) if fields.has(name) else 0.0


_ARCHITECTURES: dict[str, Callable[[Checkpoint, Metadata, str], ModelConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
