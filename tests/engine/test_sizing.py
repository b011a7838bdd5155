"""Sizes of the KV pool and of a step's buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from core_driver import engine_config
from hypothesis import given
from hypothesis import strategies as st

from takt.engine.memory import available_memory_bytes
from takt.engine.sizing import EngineSizes, KVShape, plan_sizes
from takt.errors import ConfigError
from takt.kvcache.sizing import peak_blocks
from takt.types.kv import KVDtype, KVGroupSpec

GIB = 1 << 30


def shape(*windows: int | None, max_model_len: int = 8192) -> KVShape:
    groups = [KVGroupSpec((2 * g, 2 * g + 1), window) for g, window in enumerate(windows)]
    return KVShape(groups, num_kv_heads=3, head_dim=64, max_model_len=max_model_len)


def plan(model: KVShape, available: int = 8 * GIB, **options: Any) -> EngineSizes:
    options = {"kv_cache_memory_bytes": None, "max_num_batched_tokens": 512, **options}
    return plan_sizes(engine_config(**options), model, available, vocab_size=1000)


def test_without_a_budget_the_pool_is_what_requests_can_use() -> None:
    sizes = plan(shape(None), available=1 << 50, max_num_seqs=8, kv_cache_dtype="bfloat16")
    assert sizes.num_blocks == (8 * 512,)
    assert sizes.num_kv_tokens == 8 * 8192
    assert sizes.kv.block_bytes(0) == 2 * 2 * 3 * 16 * 64 * 2
    assert sizes.kv_cache_bytes == 8 * 512 * sizes.kv.block_bytes(0)


def test_a_share_of_the_free_memory_bounds_the_pool() -> None:
    sizes = plan(shape(None), available=GIB, max_num_seqs=64, gpu_memory_utilization=0.25)
    block = sizes.kv.block_bytes(0)
    assert GIB // 4 - block < sizes.kv_cache_bytes <= GIB // 4


def test_a_given_size_is_used_whole() -> None:
    sizes = plan(shape(None), kv_cache_memory_bytes=64 << 20, max_num_seqs=1)
    assert 0 <= (64 << 20) - sizes.kv_cache_bytes < sizes.kv.block_bytes(0)


def test_the_context_shrinks_to_the_pool_with_a_notice_unless_it_was_asked_for() -> None:
    sizes = plan(shape(None), kv_cache_memory_bytes=1 << 20)
    assert sizes.max_model_len == (1 << 20) // sizes.kv.block_bytes(0) * 16
    assert sizes.notice is not None
    assert str(sizes.max_model_len) in sizes.notice
    assert "8192" in sizes.notice
    with pytest.raises(ConfigError, match=f"the longest that fits is {sizes.max_model_len}"):
        plan(shape(None), kv_cache_memory_bytes=1 << 20, max_model_len=8192)
    assert plan(shape(None)).notice is None


def test_a_pool_without_room_for_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes gives 100"):
        plan(shape(None), kv_cache_memory_bytes=100)
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        plan(shape(None), available=0)


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--max-model-len 9000.*8192"):
        plan(shape(None), max_model_len=9000)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, KVDtype.INT8),
        ({"quantization": "int4"}, KVDtype.INT8),
        ({"quantization": "none"}, KVDtype.BF16),
        ({"backend": "torch"}, KVDtype.BF16),
        ({"dtype": "bfloat16"}, KVDtype.BF16),
        ({"dtype": "float32"}, KVDtype.F32),
        ({"kv_cache_dtype": "float32"}, KVDtype.F32),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, KVDtype.BF16),
        ({"kv_cache_dtype": "fp8"}, KVDtype.FP8_E4M3),
        ({"kv_cache_dtype": "fp8_e4m3"}, KVDtype.FP8_E4M3),
        ({"kv_cache_dtype": "int8"}, KVDtype.INT8),
    ],
)
def test_the_cache_is_as_precise_as_the_products_unless_asked(
    options: dict[str, Any], dtype: KVDtype
) -> None:
    assert plan(shape(None), **options).kv.dtype is dtype


def test_a_pool_of_half_the_bytes_holds_twice_the_tokens() -> None:
    pool = {"kv_cache_memory_bytes": 256 << 20}
    bf16, fp8, int8 = (
        plan(shape(None), kv_cache_dtype=name, **pool) for name in ("bfloat16", "fp8", "int8")
    )
    assert bf16.kv.block_bytes(0) == 2 * fp8.kv.block_bytes(0)
    # Of a head of 64 int8 there are 66 bytes.
    assert int8.kv.block_bytes(0) * 64 == fp8.kv.block_bytes(0) * 66
    assert fp8.num_blocks[0] // 2 == bf16.num_blocks[0]
    assert int8.num_kv_tokens == int8.kv.block_size * ((256 << 20) // int8.kv.block_bytes(0))


def test_limits_hold_the_largest_step() -> None:
    limits = plan(shape(None, 512), max_num_seqs=64, max_logprobs=5).limits
    assert limits.max_num_tokens == 512
    assert limits.max_num_rows == 512 + 64
    assert limits.max_blocks_per_seq == 512
    assert limits.num_kv_groups == 2
    assert limits.max_num_history == 64 * 1000
    assert limits.max_logprobs == 5


@given(
    windows=st.lists(st.one_of(st.none(), st.integers(1, 9000)), min_size=1, max_size=3),
    pool=st.integers(0, 1 << 32),
    max_num_seqs=st.integers(1, 512),
    max_model_len=st.integers(1, 20_000),
    given_size=st.booleans(),
)
def test_any_pool_holds_a_whole_request_and_no_more_bytes_than_allowed(
    windows: list[int | None],
    pool: int,
    max_num_seqs: int,
    max_model_len: int,
    given_size: bool,
) -> None:
    model = shape(*windows, max_model_len=max_model_len)
    options: dict[str, Any] = {"kv_cache_memory_bytes": max(pool, 1) if given_size else None}
    try:
        sizes = plan(model, available=2 * pool, max_num_seqs=max_num_seqs, **options)
    except ConfigError:
        smallest = plan(shape(*windows, max_model_len=16), available=1 << 40)
        least = sum(smallest.kv.block_bytes(g) for g in range(len(windows)))
        assert pool < least or max_model_len < 16
        return
    assert sizes.kv_cache_bytes <= max(pool, 1)
    for group, blocks in enumerate(sizes.num_blocks):
        assert blocks >= peak_blocks(sizes.kv, group, sizes.max_model_len, 512)


def test_the_least_room_of_host_and_cgroups_counts(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    assert available_memory_bytes(proc, cgroup) == 8000 * 1024
    inner = cgroup / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    assert available_memory_bytes(proc, cgroup) == 8000 * 1024
    outer = inner.parent
    (outer / "memory.max").write_text("5000000\n")
    (outer / "memory.current").write_text("3000000\n")
    (outer / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    assert available_memory_bytes(proc, cgroup) == 3_000_000
    (proc / "self" / "cgroup").write_text("4:memory:/v1\n0::/\n")
    legacy = cgroup / "memory" / "v1"
    legacy.mkdir(parents=True)
    (legacy / "memory.limit_in_bytes").write_text("2000000\n")
    (legacy / "memory.usage_in_bytes").write_text("2500000\n")
    (legacy / "memory.stat").write_text("total_inactive_file 0\n")
    assert available_memory_bytes(proc, cgroup) == 0
    (legacy / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert available_memory_bytes(proc, cgroup) == 8000 * 1024
