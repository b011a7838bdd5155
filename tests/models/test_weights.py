"""Tensors by role: order of rows, storage type, and errors that name what is wrong."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from fake_checkpoint import FakeCheckpoint
from model_driver import precision_of
from takt.errors import ConfigError, ModelError
from takt.loading.convert import bfloat16_bits, converted
from takt.loading.dequantize import dequantize
from takt.models.config import read_model_config
from takt.models.decoder import Decoder, load_decoder
from takt.models.weights import WeightReader
from takt.types.precision import Operator
from takt.types.quant import QuantTensor, QuantType

HIDDEN, HEADS, HEAD_DIM, MLP, VOCAB = 32, 2, 8, 64, 40


class RecordingOps:
    """Keeps what is packed, so that a weight can be compared with the file's tensors."""

    def pack_linear(
        self, parts: list[QuantTensor], bias: np.ndarray | None = None
    ) -> tuple[list[QuantTensor], np.ndarray | None]:
        return list(parts), bias

    def pack_vector(self, values: np.ndarray) -> np.ndarray:
        return values


def gguf_checkpoint(architecture: str = "llama", **extra: np.ndarray) -> FakeCheckpoint:
    fields = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": HIDDEN,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    metadata: dict[str, Any] = {f"{architecture}.{key}": value for key, value in fields.items()}
    metadata["general.architecture"] = architecture
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (MLP, HIDDEN),
        "blk.0.ffn_up.weight": (MLP, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, MLP),
    }
    tensors = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    return FakeCheckpoint("gguf", metadata, tensors | extra)


def load(checkpoint: FakeCheckpoint, dtype: str = "auto", **options: Any) -> Decoder:
    config = read_model_config(checkpoint)
    ops: Any = RecordingOps()
    return load_decoder(checkpoint, config, ops, precision=precision_of(dtype), **options)


def test_rows_of_llama_queries_and_keys_are_put_in_halves() -> None:
    checkpoint = gguf_checkpoint()
    (q, k, v), bias = load(checkpoint).layers[0].qkv
    stored_q = checkpoint.values["blk.0.attn_q.weight"]
    # Element i of a head's first half is stored at row 2i, of its second half at row 2i + 1.
    for head in range(HEADS):
        for i in range(HEAD_DIM // 2):
            for half in (0, 1):
                got = dequantize(q)[head * HEAD_DIM + half * HEAD_DIM // 2 + i]
                np.testing.assert_array_equal(got, stored_q[head * HEAD_DIM + 2 * i + half])
    stored_k = checkpoint.values["blk.0.attn_k.weight"]
    np.testing.assert_array_equal(dequantize(k)[HEAD_DIM // 2], stored_k[1])
    np.testing.assert_array_equal(dequantize(v), checkpoint.values["blk.0.attn_v.weight"])
    assert bias is None


def test_other_architectures_keep_their_rows() -> None:
    names = ("q", "k", "v")
    biases = {
        f"blk.0.attn_{n}.bias": np.arange(size, dtype=np.float32)
        for n, size in zip(names, (HEADS * HEAD_DIM, HEAD_DIM, HEAD_DIM), strict=True)
    }
    checkpoint = gguf_checkpoint("qwen2", **biases)
    (q, _, _), bias = load(checkpoint).layers[0].qkv
    np.testing.assert_array_equal(dequantize(q), checkpoint.values["blk.0.attn_q.weight"])
    np.testing.assert_array_equal(bias, np.concatenate(list(biases.values())))


def test_gate_lies_over_up() -> None:
    checkpoint = gguf_checkpoint()
    (gate, up), _ = load(checkpoint).layers[0].gate_up
    np.testing.assert_array_equal(dequantize(gate), checkpoint.values["blk.0.ffn_gate.weight"])
    np.testing.assert_array_equal(dequantize(up), checkpoint.values["blk.0.ffn_up.weight"])


def test_tied_head_is_the_embedding_itself() -> None:
    tied = load(gguf_checkpoint())
    assert tied.head is tied.embedding
    output = np.ones((VOCAB, HIDDEN), np.float32)
    untied = load(gguf_checkpoint(**{"output.weight": output}))
    np.testing.assert_array_equal(dequantize(untied.head[0][0]), output)


def test_rope_divisors_of_the_file_are_used() -> None:
    divisors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    plain = load(gguf_checkpoint()).layers[0].attention.inv_freq
    scaled = load(gguf_checkpoint(**{"rope_freqs.weight": divisors})).layers[0].attention.inv_freq
    np.testing.assert_allclose(scaled, plain / divisors)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("auto", "F32"),
        ("float32", "F32"),
        ("bfloat16", "BF16"),
        ("float16", "F16"),
        ("int8", "Q8_0"),
        ("int4", "Q4_1"),
        ("none", "F32"),
    ],
)
def test_policy_is_how_matrices_are_packed(dtype: str, kind: str) -> None:
    checkpoint = gguf_checkpoint()
    decoder = load(checkpoint, dtype)
    (down,), _ = decoder.layers[0].down
    (head,), _ = decoder.head
    assert converted(down).type is QuantType[kind]
    assert converted(head).type is QuantType["Q8_0" if dtype == "int4" else kind]
    stored = checkpoint.values["blk.0.ffn_down.weight"]
    # Half the distance between neighbours is 2^-8 of a bfloat16, 2^-11 (or 2^-25) of a float16, and
    # half a step of a grid from -4 to 4 of the widest group.
    step = {"Q8_0": 4 / 127, "Q4_1": 8 / 15}.get(kind, 0.0)
    tolerance = {"BF16": 2.0**-8, "F16": 2.0**-11}.get(kind, 0.0)
    values = dequantize(converted(down))
    np.testing.assert_allclose(values, stored, rtol=tolerance, atol=2.0**-25 + step / 2)
    assert decoder.layers[0].input_norm.dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "scale"),
    # sqrt(32) = 5.656854...; bfloat16 steps by 2^-5 there, float16 by 2^-8.
    [("float32", float(np.float32(math.sqrt(32)))), ("bfloat16", 5.65625), ("float16", 5.65625)],
)
def test_embedding_scale_is_rounded_as_the_table_is(dtype: str, scale: float) -> None:
    checkpoint = gguf_checkpoint()
    config = dataclasses.replace(read_model_config(checkpoint), scale_embedding=True)
    ops: Any = RecordingOps()
    decoder = load_decoder(checkpoint, config, ops, precision=precision_of(dtype))
    assert decoder.embedding_scale == scale
    assert load(checkpoint, dtype).embedding_scale == 1.0


def test_columns_that_fill_no_group_stay_as_stored_or_are_refused() -> None:
    columns = {"blk.0.ffn_down.weight": np.ones((HIDDEN, MLP), np.float32)}
    reader = WeightReader(FakeCheckpoint("gguf", {}, columns), lambda *_: QuantType.Q4_K)
    with pytest.raises(ConfigError, match=r"ffn_down\.weight has 64 columns.*groups of 256"):
        reader.matrix("blk.0.ffn_down.weight", HIDDEN, MLP)
    precision = precision_of("int8")
    assert precision is not None
    assert precision.packed_type(Operator.DOWN, QuantType.BF16, 48) is QuantType.BF16
    assert precision.packed_type(Operator.DOWN, QuantType.BF16, 64) is QuantType.Q8_0


def test_bfloat16_rounds_to_nearest_even() -> None:
    def rounded(bits: int) -> int:
        return int(bfloat16_bits(np.array([bits], np.uint32).view(np.float32))[0])

    assert rounded(0x3F800000) == 0x3F80
    assert rounded(0x3F808000) == 0x3F80  # a tie, to even
    assert rounded(0x3F818000) == 0x3F82
    assert rounded(0x3F808001) == 0x3F81
    assert rounded(0x7F800000) == 0x7F80  # infinity stays
    assert rounded(0x7FFFFFFF) & 0x7FFF > 0x7F80  # so does not-a-number


def test_missing_tensor_is_named() -> None:
    checkpoint = gguf_checkpoint()
    del checkpoint.values["blk.0.attn_v.weight"]
    with pytest.raises(ModelError, match=r"/models/fake: tensor blk\.0\.attn_v\.weight \(8, 32\)"):
        load(checkpoint)


def test_wrong_shape_names_both() -> None:
    checkpoint = gguf_checkpoint()
    checkpoint.values["blk.0.ffn_down.weight"] = np.zeros((HIDDEN, MLP + 32), np.float32)
    with pytest.raises(ModelError, match=r"ffn_down\.weight has shape \(32, 96\).*\(32, 64\)"):
        load(checkpoint)


def test_half_a_set_of_biases_is_an_error() -> None:
    bias = np.zeros(HEADS * HEAD_DIM, np.float32)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k\.bias \(8,\) is missing"):
        load(gguf_checkpoint(**{"blk.0.attn_q.bias": bias}))


def test_tensor_without_a_place_is_an_error() -> None:
    extra = {"blk.0.attn_q_norm.weight": np.ones(HEAD_DIM, np.float32)}
    with pytest.raises(ModelError, match=r"1 tensors have no place .* blk\.0\.attn_q_norm"):
        load(gguf_checkpoint(**extra))


def test_progress_ends_at_the_whole() -> None:
    calls: list[tuple[int, int]] = []
    checkpoint = gguf_checkpoint()
    load(checkpoint, on_progress=lambda done, total: calls.append((done, total)))
    total = sum(value.nbytes for value in checkpoint.values.values())
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len(calls) == len(checkpoint.values)


def test_reader_counts_what_it_skips() -> None:
    checkpoint = FakeCheckpoint(
        "safetensors", {}, {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}
    )
    reader = WeightReader(checkpoint, lambda name, stored, num_columns: stored)
    with pytest.raises(ModelError, match="no place"):
        reader.finish(())
    reader.finish((".rotary_emb.inv_freq",))
