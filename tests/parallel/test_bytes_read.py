"""What each rank reads of a model's file, to the byte: its share, and what several hold copies of.

The expectation is written out here from the rules of `docs/parallel.md`, by tensor name; reads are
counted at the system call, as the kernel's own count shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from takt.loading.base import TensorInfo
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.models.config import ModelConfig, read_model_config
from takt.models.decoder import load_decoder
from takt.models.sharding import model_sizes
from takt.ops.create import create_ops
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import plan_shards, tensor_sizes
from takt.parallel.shard import Shard
from tiny_models import CONFIGS, GGUF_CONFIGS

pytestmark = pytest.mark.oracle


def bytes_read(path: Path, shard: Shard) -> int:
    """By `load_decoder`, header and metadata apart."""
    checkpoint = open_checkpoint(path)
    config = read_model_config(checkpoint)
    ops = create_ops("native", 1)
    try:
        before = checkpoint.num_bytes_read
        load_decoder(checkpoint, config, ops, shard=shard)
        return checkpoint.num_bytes_read - before
    finally:
        ops.close()
        checkpoint.close()


def expected_bytes(tensors: dict[str, TensorInfo], config: ModelConfig, shard: Shard) -> int:
    total = 0
    for name, info in tensors.items():
        rows, columns = part_of(name, info, config, shard)
        total += rows * info.type.row_bytes(columns)
    return total


def part_of(name: str, info: TensorInfo, config: ModelConfig, shard: Shard) -> tuple[int, int]:
    """Rows and columns of a tensor that the rank holds; a vector is a row."""
    num_rows, num_columns = info.shape if len(info.shape) == 2 else (1, info.shape[0])
    if "rope_freqs" in name:
        return 1, num_columns
    if "embed" in name or "token_embd" in name or name in ("lm_head.weight", "output.weight"):
        is_table = "embed" in name or "token_embd" in name
        is_tied = config.tie_word_embeddings
        is_held = shard.is_first_stage if is_table else shard.is_last_stage
        is_held |= is_table and is_tied and shard.is_last_stage
        return (shard.vocab.size if is_held else 0), num_columns
    if not any(f".{i}." in name for i in range(config.num_layers)):
        return int(shard.is_last_stage), num_columns  # the final norm
    layer = next(i for i in range(config.num_layers) if f".{i}." in name)
    if has(name, "post_ffw_norm", "post_feedforward_layernorm"):
        # Belongs to the next norm: that of the next layer, perhaps on the next stage, or the final.
        user = min(layer + 1, config.num_layers - 1)
        return int(shard.layers.first <= user < shard.layers.end), num_columns
    if not shard.layers.first <= layer < shard.layers.end:
        return 0, num_columns
    if "norm" in name:
        return num_rows, num_columns
    return part_of_matrix(name, info, config, shard)


def part_of_matrix(
    name: str, info: TensorInfo, config: ModelConfig, shard: Shard
) -> tuple[int, int]:
    size, head_dim = shard.tensor_size, config.head_dim
    mlp = config.intermediate_size // size
    heads = config.num_heads // size * head_dim
    kv_heads = max(config.num_kv_heads // size, 1) * head_dim
    is_vector = len(info.shape) == 1
    if has(name, "attn_q.", "q_proj.", "attn_k.", "k_proj.", "attn_v.", "v_proj."):
        mine = heads if has(name, "attn_q.", "q_proj.") else kv_heads
    elif has(name, "ffn_gate.", "gate_proj.", "ffn_up.", "up_proj."):
        mine = mlp
    else:
        assert has(name, "attn_output.", "o_proj.", "ffn_down.", "down_proj."), name
        if is_vector:
            return int(shard.is_first_of_group), info.shape[0]
        return info.shape[0], heads if has(name, "attn_output.", "o_proj.") else mlp
    return (1, mine) if is_vector else (mine, info.shape[1])


def has(name: str, *parts: str) -> bool:
    return any(part in name for part in parts)


def check(path: Path, layouts: list[ParallelLayout]) -> None:
    checkpoint = open_checkpoint(path)
    config = read_model_config(checkpoint)
    tensors, sizes = dict(checkpoint.tensors), model_sizes(checkpoint, config)
    checkpoint.close()
    for layout in layouts:
        for rank, shard in enumerate(plan_shards(sizes, layout)):
            expected = expected_bytes(tensors, config, shard)
            assert bytes_read(path, shard) == expected, f"rank {rank} of {layout}"


TINY = [(name, None) for name in CONFIGS] + [(name, "Q8_0") for name in GGUF_CONFIGS]


@pytest.mark.parametrize(("name", "kind"), TINY)
def test_tiny_models(divisible: Callable[..., Path], name: str, kind: str | None) -> None:
    check(
        divisible(name, kind),
        [ParallelLayout(1, 1), ParallelLayout(2, 2), ParallelLayout(4, 1), ParallelLayout(1, 3)],
    )


@pytest.mark.model
@pytest.mark.parametrize(("name", "sizes"), [("smollm2-135m", [1, 3]), ("gemma3-270m", [1, 2, 4])])
def test_real_models(name: str, sizes: list[int]) -> None:
    path = Path(resolve_model(name).path)
    checkpoint = open_checkpoint(path)
    assert tensor_sizes(model_sizes(checkpoint, read_model_config(checkpoint))) == sizes
    checkpoint.close()
    check(path, [ParallelLayout(sizes[-1], 1), ParallelLayout(sizes[1], 2)])


COUNTER = Path("/proc/thread-self/io")


@pytest.mark.skipif(not COUNTER.exists(), reason="the kernel does not count reads")
def test_the_kernel_counts_the_same(divisible: Callable[..., Path]) -> None:
    """Bytes that this thread has read by any system call, while it loads for the second time."""

    def kernel_bytes() -> int:
        fields = COUNTER.read_text().split()
        return int(fields[fields.index("rchar:") + 1])

    path = divisible("gemma3", "Q8_0")
    checkpoint = open_checkpoint(path)
    config, ops = read_model_config(checkpoint), create_ops("native", 1)
    (_, shard) = plan_shards(model_sizes(checkpoint, config), ParallelLayout(2))
    try:
        load_decoder(checkpoint, config, ops, shard=shard)
        kernel_bytes()
        start, counted = kernel_bytes(), checkpoint.num_bytes_read
        load_decoder(checkpoint, config, ops, shard=shard)
        counted = checkpoint.num_bytes_read - counted
        # The counter's own text, read to its end, is in it too.
        by_kernel = kernel_bytes() - start - len(COUNTER.read_text())
    finally:
        ops.close()
        checkpoint.close()
    assert abs(by_kernel - counted) <= 16, "digits of the counter may have become more"
