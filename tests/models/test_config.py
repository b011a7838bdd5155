"""Configurations of both formats: what is read, and that nothing is ignored."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_checkpoint import FakeCheckpoint
from takt.errors import ModelError, UnsupportedModelError
from takt.models.config import read_model_config
from takt.models.rope import RopeConfig
from takt.types.kv import KVGroupSpec

HF_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}
HF_GEMMA = HF_LLAMA | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 13,
    "head_dim": 16,
    "sliding_window": 32,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "query_pre_attn_scalar": 25,
}
GGUF_LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 3,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16,
    "llama.rope.freq_base": 100_000.0,
}
GGUF_GEMMA: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 13,
    "gemma3.context_length": 128,
    "gemma3.embedding_length": 48,
    "gemma3.feed_forward_length": 64,
    "gemma3.attention.head_count": 3,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 16,
    "gemma3.attention.value_length": 16,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 32,
    "gemma3.rope.freq_base": 1e6,
}
TABLE = {"token_embd.weight": np.zeros((100, 48), np.float32)}


def hf(**changes: Any) -> FakeCheckpoint:
    return FakeCheckpoint("safetensors", HF_LLAMA | changes)


def gguf(**changes: Any) -> FakeCheckpoint:
    return FakeCheckpoint("gguf", GGUF_LLAMA | changes, TABLE)


@pytest.mark.parametrize("checkpoint", [hf(), gguf()])
def test_both_formats_of_one_model_read_alike(checkpoint: FakeCheckpoint) -> None:
    config = read_model_config(checkpoint)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (100, 48, 64)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 3, 1)
    assert (config.head_dim, config.max_position_embeddings) == (16, 128)
    assert config.attention_scale == pytest.approx(0.25)
    assert config.activation == "silu"
    assert config.tie_word_embeddings
    assert not (config.qk_norm or config.post_norms or config.scale_embedding)
    assert config.layers[0].rope == RopeConfig(100_000.0)
    assert config.kv_groups() == (KVGroupSpec((0, 1), None),)


@pytest.mark.parametrize(
    "checkpoint",
    [
        FakeCheckpoint("safetensors", HF_GEMMA),
        FakeCheckpoint(
            "gguf",
            GGUF_GEMMA | {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
            TABLE,
        ),
    ],
)
def test_gemma_alternates_windows_and_ropes(checkpoint: FakeCheckpoint) -> None:
    config = read_model_config(checkpoint)
    full, sliding = config.kv_groups()
    assert full == KVGroupSpec((5, 11), None)
    assert sliding == KVGroupSpec((0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12), 32)
    assert config.layers[5].rope == RopeConfig(1e6, linear_factor=8.0)
    assert config.layers[4].rope == RopeConfig(1e4)
    assert config.activation == "gelu_tanh"
    assert config.qk_norm and config.post_norms and config.scale_embedding


def test_gemma_query_scale() -> None:
    assert read_model_config(FakeCheckpoint("safetensors", HF_GEMMA)).attention_scale == 0.2
    small = read_model_config(FakeCheckpoint("gguf", GGUF_GEMMA, TABLE))
    assert small.attention_scale == 0.25  # head_dim ** -0.5
    of_27b = GGUF_GEMMA | {"gemma3.block_count": 62, "gemma3.attention.head_count_kv": 3}
    large = read_model_config(FakeCheckpoint("gguf", of_27b, TABLE))
    assert large.attention_scale == pytest.approx((48 / 3) ** -0.5)


def test_new_and_old_spelling_of_rope_agree() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = read_model_config(hf(rope_scaling=scaling))
    new = read_model_config(hf(rope_theta=None, rope_parameters=scaling | {"rope_theta": 1e5}))
    assert old.layers == new.layers
    assert old.layers[0].rope.llama3 is not None


def test_llama3_scaling_keeps_fast_pairs_and_slows_slow_ones() -> None:
    config = read_model_config(
        hf(
            head_dim=64,
            rope_scaling={
                "type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        )
    )
    plain, scaled = RopeConfig(1e5).inv_freq(64), config.layers[0].rope.inv_freq(64)
    wavelengths = 2 * math.pi / plain
    np.testing.assert_allclose(scaled[wavelengths < 2048], plain[wavelengths < 2048], rtol=1e-15)
    np.testing.assert_allclose(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
    between = (wavelengths > 2048) & (wavelengths < 8192)
    assert between.any()
    assert np.all((scaled < plain)[between] & (scaled > plain / 8)[between])


def test_mistral_window() -> None:
    windowed = read_model_config(hf(model_type="mistral", sliding_window=4096))
    assert windowed.kv_groups() == (KVGroupSpec((0, 1), 4096),)
    assert read_model_config(hf(model_type="mistral")).layers[0].window == 4096
    without = FakeCheckpoint(
        "safetensors", HF_LLAMA | {"model_type": "mistral", "sliding_window": None}
    )
    assert read_model_config(without).layers[0].window is None


def test_qwen2_windows_begin_at_a_layer() -> None:
    config = read_model_config(
        hf(model_type="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1)
    )
    assert [layer.window for layer in config.layers] == [None, 9]
    unused = read_model_config(hf(model_type="qwen2", sliding_window=9))
    assert [layer.window for layer in unused.layers] == [None, None]


@pytest.mark.parametrize("checkpoint_format", ["gguf", "safetensors"])
def test_unknown_architecture_lists_the_known(checkpoint_format: str) -> None:
    metadata = {"general.architecture": "rwkv", "model_type": "rwkv"}
    with pytest.raises(
        UnsupportedModelError, match=r"'rwkv' is not known; known are: llama,.*qwen3"
    ):
        read_model_config(FakeCheckpoint(checkpoint_format, metadata, TABLE))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type = 'yarn'"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "mrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"model_type": "qwen2", "layer_types": ["full_attention", "linear"]}, "layer_types"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional"),
    ],
)
def test_unsupported_feature_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=r"not supported|use_sliding_window is false") as error:
        read_model_config(hf(**changes))
    assert named in str(error.value)
    assert "/models/fake" in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("llama.expert_count", 8),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.some_new_feature", 1.5),
        ("llama.attention.value_length", 32),
        ("llama.rope.dimension_count", 8),
    ],
)
def test_unsupported_gguf_feature_is_named(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        read_model_config(gguf(**{field: value}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "48"}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of 1"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers must be a whole number of 1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number"),
        ({"rope_theta": -1.0}, "rope_theta must be a finite number"),
        ({"rope_scaling": 3}, "rope_scaling must be an object"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"num_attention_heads": 5, "num_key_value_heads": 2}, "5 attention heads"),
        ({"head_dim": 7}, "head_dim is 7"),
    ],
)
def test_malformed_config_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read_model_config(hf(**changes))


def test_gguf_vocabulary_must_agree_with_the_embedding() -> None:
    with pytest.raises(ModelError, match=r"vocab_size = 99 but .* 100 rows"):
        read_model_config(gguf(**{"llama.vocab_size": 99}))


def test_published_config_of_smollm2_is_read() -> None:
    """With the fields that training frameworks leave behind."""
    text = Path(__file__).with_name("smollm2_config.json").read_text()
    config = read_model_config(FakeCheckpoint("safetensors", json.loads(text)))
    assert config.num_layers == 30
    assert config.tie_word_embeddings
