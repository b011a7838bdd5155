import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from takt.plan.errors import PlanInputError
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision, precision_for

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA_8B, **changes}))
    return folder


def test_llama_3_70b_has_its_published_sizes() -> None:
    model = find_model("llama-3-70b")
    assert model.block_params == pytest.approx(68.45e9, rel=1e-3)
    assert model.head_params == pytest.approx(1.05e9, rel=2e-3)
    assert model.num_params == pytest.approx(70.55e9, rel=1e-3)
    assert model.kv_elements_per_token * 2 == 327_680
    assert model.prefill_flops(512) == pytest.approx(70.4e12, rel=0.01)


def test_tied_and_expert_weights_are_counted_once_and_all() -> None:
    assert find_model("qwen3-1.7b").num_params == pytest.approx(1.72e9, rel=0.01)
    mixtral = find_model("mixtral-8x7b")
    assert mixtral.num_params == pytest.approx(46.7e9, rel=0.01)
    assert mixtral.active_block_params < 0.3 * mixtral.block_params
    assert mixtral.distinct_experts(1) == pytest.approx(2)
    assert mixtral.distinct_experts(100) == pytest.approx(8, rel=1e-3)


def test_aliases_are_found_in_any_case() -> None:
    assert find_model("META-LLAMA/Meta-Llama-3-8B") == find_model("llama-3-8b")


def test_a_config_gives_the_same_shape_as_the_alias(tmp_path: Path) -> None:
    read = find_model(str(write_config(tmp_path / "model")))
    known = find_model("llama-3-8b")
    assert read.num_params == known.num_params
    assert read.kv_elements_per_token == known.kv_elements_per_token


def test_experts_and_windows_of_a_config_are_read(tmp_path: Path) -> None:
    folder = write_config(
        tmp_path / "m",
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=100,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
    )
    model = find_model(str(folder))
    assert (model.num_experts, model.num_active_experts) == (8, 2)
    assert model.windows == (100, None)
    assert model.kv_tokens_seen(1000, 2) == (200 + 1000) / 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"tie_word_embeddings": 3}, "tie_word_embeddings"),
    ],
)
def test_a_wrong_config_is_refused_by_file_and_field(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    folder = write_config(tmp_path / "m", **changes)
    with pytest.raises(PlanInputError, match=r"config\.json") as caught:
        find_model(str(folder))
    assert field in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", ""])
def test_what_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(PlanInputError, match=r"config\.json"):
        find_model(str(tmp_path / "config.json"))


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PlanInputError, match="nearest: llama-3-70b"):
        find_model("llama3-70b")
    with pytest.raises(PlanInputError, match="cannot be read"):
        find_model(str(tmp_path / "none.json"))
    with pytest.raises(PlanInputError, match=r"none\.gguf"):
        find_model(str(tmp_path / "none.gguf"))
    with pytest.raises(PlanInputError, match="nearest: fp"):
        parse_precision("fp9")
    with pytest.raises(PlanInputError, match="--kv-cache-dtype"):
        parse_precision("fp8", "int3")


def test_kv_is_int8_beside_a_files_own_types() -> None:
    model = find_model("qwen3-1.7b")
    kv = [precision_for(model, name).kv_dtype for name in ("auto", "packed", "fp8")]
    assert kv == ["bf16", "int8", "bf16"]
    assert precision_for(model, "packed", "bf16").kv_dtype == "bf16"


def test_a_gguf_file_counts_with_the_bytes_it_packs(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    hidden, inner, vocab = 64, 96, 40
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {
        "token_embd.weight": (vocab, hidden),
        "blk.0.attn_q.weight": (hidden, hidden),
        "blk.0.attn_k.weight": (hidden // 2, hidden),
        "blk.0.attn_v.weight": (hidden // 2, hidden),
        "blk.0.attn_output.weight": (hidden, hidden),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = find_model(str(path))
    blocks = sum(a * b for name, (a, b) in shapes.items() if name.startswith("blk"))
    assert model.block_params == blocks
    packed = precision_for(model, "auto")
    assert packed.name == "packed"
    assert model.block_bytes(packed.weight_bytes) == 4 * blocks
    assert model.block_bytes(parse_precision("int8").weight_bytes) == blocks
    assert model.head_bytes(packed.head_bytes) == 4 * vocab * hidden
    assert precision_for(find_model("llama-3-8b"), "auto").name == "fp16"
