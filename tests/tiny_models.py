"""Tiny random models of every architecture, as Hugging Face directories and as GGUF files.

The reference is always `transformers` on the very weights the files hold: for GGUF, the values that
the `gguf` package reads back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

TinyMaker = Callable[..., tuple[Path, PreTrainedModel]]

VOCAB_SIZE = 320
MAX_POSITION = 512

_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_POSITION,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama_tied": {"model_type": "llama", "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "llama_biased": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    },
    "llama3": {
        "model_type": "llama",
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "tie_word_embeddings": False,
        "rope_parameters": _LLAMA3_ROPE,
    },
    "mistral": {
        "model_type": "mistral",
        "num_key_value_heads": 3,
        "sliding_window": 24,
        "tie_word_embeddings": False,
    },
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2_windowed": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 17,
        "max_window_layers": 1,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 64,
        "head_dim": 64,
        "num_attention_heads": 5,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 20,
        "rope_parameters": _GEMMA_ROPES,
    },
    "gemma3_scaled": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "num_key_value_heads": 3,
        "query_pre_attn_scalar": 48,
        "sliding_window": 20,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": False,
    },
}

GGUF_CONFIGS = ("llama_tied", "llama_biased", "llama3", "qwen2", "qwen3", "gemma3")
"""Those that the format can express."""


def make_model(name: str, seed: int = 0, **sizes: int) -> PreTrainedModel:
    """A model in fp32 whose every parameter is random, norms and biases too."""
    settings = _SHARED | CONFIGS[name] | sizes
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(model, seed)
    return model.float().eval()


def randomise(model: PreTrainedModel, seed: int) -> None:
    """Keeps activations near 1 whatever the widths, so that no layer drowns in the residual."""
    generator = torch.Generator().manual_seed(seed)
    is_gemma = model.config.model_type == "gemma3_text"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))
            elif name.endswith("norm.weight"):
                parameter.copy_(0.2 * noise + (0.0 if is_gemma else 1.0))
            else:
                parameter.copy_(0.3 * noise)


def write_gguf(model: PreTrainedModel, path: Path, quant_type: str = "F32") -> PreTrainedModel:
    """Writes a model as llama.cpp's converter would and returns the model of the stored values.

    Matrices are stored as `quant_type`, vectors as F32.
    """
    config, state = model.config, model.state_dict()
    architecture = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers
    )
    kind = gguf.GGMLQuantizationType[quant_type]
    stored: dict[str, torch.Tensor] = {}
    for name, parameter in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.numpy().astype(np.float32)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1.0)
        if architecture == "llama":
            values = _pairs_from_halves(name, values, config)
        raw = quantize(values, kind) if values.ndim == 2 else values
        raw_kind = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_gguf_name(names, name), raw, raw_dtype=raw_kind)
        if values.ndim == 2:
            # Rows are quantised one by one, so their order does not change their values.
            stored[name] = torch.from_numpy(
                dequantize(quantize(parameter.numpy().astype(np.float32), kind), kind)
            )
    if config.model_type == "llama" and "factor" in config.rope_parameters:
        _write_llama_rope(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    reference.load_state_dict(state | stored, strict=True)
    if config.tie_word_embeddings:
        reference.tie_weights()
        with torch.no_grad():
            reference.get_input_embeddings().weight.copy_(stored["model.embed_tokens.weight"])
    return reference.float().eval()


def reference_logits(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """float32 `[num_tokens, vocab_size]` of one pass over the whole text, without a cache."""
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def reference_greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def random_prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


def _write_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    if architecture in ("qwen3", "gemma3"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture == "gemma3":
        rope = config.rope_parameters["full_attention"]
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    else:
        rope = config.rope_parameters
    if architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])


def _write_llama_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
        return
    context = rope["original_max_position_embeddings"]
    divisors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config.head_dim)
        smooth = (context / wavelength - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        if wavelength < context / rope["high_freq_factor"]:
            divisors.append(1.0)
        elif wavelength > context / rope["low_freq_factor"]:
            divisors.append(rope["factor"])
        else:
            divisors.append(1.0 / ((1.0 - smooth) / rope["factor"] + smooth))
    writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))


def _gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    found = names.get_name(stem)
    assert found is not None, name
    return f"{found}.{suffix}"


def _pairs_from_halves(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """llama.cpp's order of the rows of Q and K."""
    if ".q_proj." in name:
        num_heads = config.num_attention_heads
    elif ".k_proj." in name:
        num_heads = config.num_key_value_heads
    else:
        return values
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
