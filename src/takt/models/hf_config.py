"""Configurations from a Hugging Face directory's config.json, of before and after version 5."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from takt.loading.base import Checkpoint
from takt.models.architecture import LayerConfig, ModelConfig, uniform_layers, windowed_layers
from takt.models.metadata import Metadata
from takt.models.rope import Llama3Scaling, RopeConfig

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# Features that change the result; a config may name them only at a value that leaves them off.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_multiplier": (),
    "clip_qkv": (),
    "dual_chunk_attention_config": (),
    "embedding_multiplier": (1.0, 1),
    "expand_intermediate_size": (False,),
    "is_causal": (True,),
    "logit_scale": (1.0, 1),
    "logits_scaling": (1.0, 1),
    "moe_intermediate_size": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1.0, 1),
    "quantization_config": (),
    "compression_config": (),
    "residual_multiplier": (1.0, 1),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
}


def read_hf_config(checkpoint: Checkpoint) -> ModelConfig:
    fields = Metadata(checkpoint.path, checkpoint.metadata)
    model_type = fields.text("model_type")
    read = _ARCHITECTURES.get(model_type)
    if read is None:
        known = ", ".join(_ARCHITECTURES)
        raise fields.unsupported("model_type", f"= {model_type!r} is not known; known are: {known}")
    fields.require_neutral(_NEUTRAL)
    return read(fields)


def _llama(fields: Metadata) -> ModelConfig:
    has_bias = fields.flag("attention_bias", False)
    return _plain(
        fields,
        "llama",
        layers=uniform_layers(fields.size("num_hidden_layers"), _one_rope(fields)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


def _mistral(fields: Metadata) -> ModelConfig:
    if fields.has("layer_types"):
        raise fields.unsupported("layer_types", "is not supported for mistral")
    rope = _one_rope(fields)
    # A config without the field means the first Mistral's 4,096; null means no window.
    absent = "sliding_window" not in fields.names()
    window = 4096 if absent else fields.optional_size("sliding_window")
    sliding = [window is not None] * fields.size("num_hidden_layers")
    return _plain(fields, "mistral", layers=windowed_layers(sliding, window, rope, rope))


def _qwen2(fields: Metadata) -> ModelConfig:
    return _plain(fields, "qwen2", layers=_qwen_layers(fields), qkv_bias=True)


def _qwen3(fields: Metadata) -> ModelConfig:
    has_bias = fields.flag("attention_bias", False)
    return _plain(
        fields,
        "qwen3",
        layers=_qwen_layers(fields),
        default_head_dim=128,
        qk_norm=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
    )


def _gemma3(fields: Metadata) -> ModelConfig:
    has_bias = fields.flag("attention_bias", False)
    return _plain(
        fields,
        "gemma3",
        layers=_gemma_layers(fields),
        activation_field="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        default_head_dim=256,
        attention_scale=1.0 / math.sqrt(fields.positive("query_pre_attn_scalar", 256)),
        attention_softcap=_optional(fields, "attn_logit_softcapping"),
        logit_softcap=_optional(fields, "final_logit_softcapping"),
        norm_offset=1.0,
        scale_embedding=True,
        qk_norm=True,
        post_norms=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
        tied_by_default=True,
    )


def _plain(
    fields: Metadata,
    architecture: str,
    *,
    layers: tuple[LayerConfig, ...],
    activation_field: str = "hidden_act",
    default_activation: str = "silu",
    default_head_dim: int | None = None,
    attention_scale: float | None = None,
    attention_softcap: float = 0.0,
    logit_softcap: float = 0.0,
    norm_offset: float = 0.0,
    scale_embedding: bool = False,
    qk_norm: bool = False,
    post_norms: bool = False,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    tied_by_default: bool = False,
) -> ModelConfig:
    """What all architectures share; Q and K are stored for rope of halves."""
    hidden_size = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    activation = fields.text(activation_field, default_activation)
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise fields.unsupported(
            activation_field, f"= {activation!r} is not supported; supported are: {known}"
        )
    head_dim = fields.size("head_dim", default_head_dim or max(hidden_size // num_heads, 1))
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.size("max_position_embeddings"),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        norm_offset=norm_offset,
        activation=_ACTIVATIONS[activation],
        attention_scale=attention_scale or 1.0 / math.sqrt(head_dim),
        attention_softcap=attention_softcap,
        logit_softcap=logit_softcap,
        scale_embedding=scale_embedding,
        qk_norm=qk_norm,
        post_norms=post_norms,
        qk_interleaved=False,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        tie_word_embeddings=fields.flag("tie_word_embeddings", tied_by_default),
        layers=layers,
    )


def _qwen_layers(fields: Metadata) -> tuple[LayerConfig, ...]:
    num_layers = fields.size("num_hidden_layers")
    rope = _one_rope(fields)
    if not fields.flag("use_sliding_window", False):
        if any(_sliding_layers(fields, num_layers) or ()):
            raise fields.error("layer_types", "has sliding layers but use_sliding_window is false")
        return uniform_layers(num_layers, rope)
    window = fields.size("sliding_window", 4096)
    sliding = _sliding_layers(fields, num_layers)
    if sliding is None:
        # Zero layers of full attention is a value like any other here.
        first = 28 if fields.get("max_window_layers") is None else fields.get("max_window_layers")
        if not isinstance(first, int) or first < 0:
            raise fields.error("max_window_layers", f"must be a whole number, got {first!r}")
        sliding = [i >= first for i in range(num_layers)]
    return windowed_layers(sliding, window, rope, rope)


def _gemma_layers(fields: Metadata) -> tuple[LayerConfig, ...]:
    num_layers = fields.size("num_hidden_layers")
    sliding = _sliding_layers(fields, num_layers)
    if sliding is None:
        pattern = fields.size("sliding_window_pattern", 6)
        sliding = [(i + 1) % pattern != 0 for i in range(num_layers)]
    window = fields.size("sliding_window", 4096)
    if fields.has("rope_parameters"):
        both = fields.section("rope_parameters")
        rope = _rope(both.section("full_attention"), 1_000_000.0)
        sliding_rope = _rope(both.section("sliding_attention"), 10_000.0)
    else:
        rope = _rope(fields.section("rope_scaling"), fields.positive("rope_theta", 1_000_000.0))
        sliding_rope = RopeConfig(fields.positive("rope_local_base_freq", 10_000.0))
    return windowed_layers(sliding, window, rope, sliding_rope)


def _sliding_layers(fields: Metadata, num_layers: int) -> list[bool] | None:
    """Per layer, whether `layer_types` calls it sliding; None without that field."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.error("layer_types", f"must list {num_layers} layers, got {kinds!r}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.unsupported("layer_types", f"names {kind!r}, which is not supported")
    return [kind == "sliding_attention" for kind in kinds]


def _one_rope(fields: Metadata) -> RopeConfig:
    """The rope of a model whose layers all have the same."""
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    section = fields.section(name)
    section.require_neutral({"full_attention": (), "sliding_attention": ()})
    return _rope(section, fields.positive("rope_theta", 10_000.0))


def _rope(section: Metadata, default_theta: float) -> RopeConfig:
    """`section` is `rope_scaling` (older) or `rope_parameters` (newer, with its own theta)."""
    section.require_neutral({"partial_rotary_factor": (1.0, 1), "mrope_section": ()})
    theta = section.positive("rope_theta", default_theta)
    kind_name = "rope_type" if section.has("rope_type") else "type"
    kind = section.text(kind_name, "default")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, linear_factor=section.positive("factor"))
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=section.positive("factor"),
            low_freq_factor=section.positive("low_freq_factor"),
            high_freq_factor=section.positive("high_freq_factor"),
            original_context=section.size("original_max_position_embeddings"),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise section.error("high_freq_factor", "must be above low_freq_factor")
        return RopeConfig(theta, llama3=scaling)
    raise section.unsupported(
        kind_name, f"= {kind!r} is not supported; supported are: default, linear, llama3"
    )


def _optional(fields: Metadata, name: str) -> float:
    return fields.positive(name) if fields.has(name) else 0.0


_ARCHITECTURES: dict[str, Callable[[Metadata], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
}
