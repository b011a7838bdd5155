"""Policies: what options ask for, and that each is the same alone and in a batch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from random_model import RandomLayer, RandomModel
from takt import LLM
from takt.config import CacheOptions, EngineConfig, ModelConfigOptions, ParallelOptions
from takt.engine import precision
from takt.engine.precision import resolve_policy
from takt.errors import ConfigError
from takt.ops.create import num_usable_cpus
from takt.ops.native.ops import NativeOps
from takt.types.kv import KVDtype
from takt.types.precision import (
    Int8Tokens,
    Operator,
    Phase,
    PrecisionInUse,
    PrecisionPolicy,
)
from takt.types.quant import QuantType


def policy_of(**options: str) -> PrecisionPolicy:
    return resolve_policy(EngineConfig(model=ModelConfigOptions(**options)))  # type: ignore[arg-type]


def test_auto_keeps_quantised_weights_and_makes_float_weights_int8() -> None:
    policy = policy_of()
    assert policy.packed_type(Operator.DOWN, QuantType.Q4_K, 256) is QuantType.Q4_K
    assert policy.packed_type(Operator.DOWN, QuantType.BF16, 256) is QuantType.Q8_0
    assert policy.packed_type(Operator.DOWN, QuantType.BF16, 40) is QuantType.BF16


def test_int4_leaves_the_head_more_bits() -> None:
    policy = policy_of(quantization="int4")
    assert policy.packed_type(Operator.QKV, QuantType.F16, 64) is QuantType.Q4_1
    assert policy.packed_type(Operator.HEAD, QuantType.F16, 64) is QuantType.Q8_0


def test_both_phases_have_one_precision() -> None:
    for options in ({}, {"quantization": "int4"}, {"dtype": "bfloat16"}):
        policy = policy_of(**options)
        for operator in Operator:
            assert policy.of(operator, Phase.PREFILL) == policy.of(operator, Phase.DECODE)


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--quantization int8 .* --dtype float16"):
        policy_of(quantization="int8", dtype="float16")


def test_a_line_names_what_was_packed() -> None:
    used = PrecisionInUse(policy_of(quantization="int4", prefill_activation_dtype="int8"))
    for operator in (Operator.QKV, Operator.DOWN, Operator.HEAD):
        used.packed_type(operator, QuantType.BF16, 64)
    assert used.describe() == ("int4 (qkv down q4_1 x int8, head q8_0 x int8; KV int8; norms f32)")


def test_a_line_tells_prompts_apart() -> None:
    used = PrecisionInUse(policy_of(prefill_activation_dtype="bfloat16"))
    used.packed_type(Operator.QKV, QuantType.Q4_K, 256)
    used.packed_type(Operator.DOWN, QuantType.BF16, 40)
    assert used.describe() == (
        "auto (qkv q4_k x int8 (prompts bf16), down bf16 x bf16; KV int8; norms f32)"
    )


@pytest.mark.parametrize("has_unit", [True, False])
def test_auto_takes_prompts_in_bf16_where_a_matrix_unit_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, has_unit: bool
) -> None:
    monkeypatch.setattr(precision, "has_matrix_unit", lambda: has_unit)
    assert policy_of().phases_differ == has_unit
    assert policy_of(quantization="int4").phases_differ == has_unit
    on_ray = replace(EngineConfig(), parallel=ParallelOptions(distributed_executor_backend="ray"))
    assert resolve_policy(on_ray).int8_tokens is Int8Tokens.ALL
    for options in (
        {"dtype": "float32"},
        {"quantization": "none"},
        {"backend": "torch"},
        {"prefill_activation_dtype": "int8"},
    ):
        assert policy_of(**options).int8_tokens is Int8Tokens.ALL
    for options in ({"dtype": "float16"}, {"quantization": "none"}, {"backend": "torch"}):
        ((name, value),) = options.items()
        with pytest.raises(ConfigError, match=f"--prefill-activation-dtype .* --{name} {value}"):
            policy_of(prefill_activation_dtype="bfloat16", **options)
        with pytest.raises(ConfigError, match=f"--decode-activation-dtype .* --{name} {value}"):
            policy_of(decode_activation_dtype="bfloat16", **options)


def test_generated_tokens_are_bf16_only_where_prompts_are() -> None:
    both = {"prefill_activation_dtype": "bfloat16", "decode_activation_dtype": "bfloat16"}
    policy = policy_of(**both)
    assert policy.int8_tokens is Int8Tokens.NONE and not policy.phases_differ
    assert policy.activations_of(QuantType.Q4_1) == "bf16"
    with pytest.raises(ConfigError, match=r"--decode-activation-dtype .* needs --prefill"):
        policy_of(**both | {"prefill_activation_dtype": "int8"})


@pytest.mark.parametrize("asked", ["fp8", "fp8_e4m3"])
def test_a_policy_names_the_cache_as_it_is_made(asked: str) -> None:
    policy = resolve_policy(EngineConfig(cache=CacheOptions(kv_cache_dtype=asked)))
    assert policy.kv_dtype is KVDtype.FP8_E4M3
    assert "KV fp8_e4m3" in PrecisionInUse(policy).describe()


def test_more_threads_than_cpus_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    num_threads = num_usable_cpus() + 1
    with caplog.at_level(logging.WARNING):
        NativeOps(num_threads).close()
    assert f"--num-threads {num_threads} is more than the" in caplog.text


@pytest.mark.parametrize("kind", [QuantType.F16, QuantType.BF16])
def test_float_weights_are_batch_invariant(kind: QuantType) -> None:
    model = RandomModel([RandomLayer(kinds=(kind,) * 7)], head=kind)
    ops = NativeOps(2)
    prompts = [[(7 * i + j) % 300 for j in range(9 + i)] for i in range(14)]
    together = model.drive(ops, max_num_seqs=16).generate_together(prompts, 8)
    alone = [model.drive(ops).generate_together([prompt], 8)[0] for prompt in prompts]
    ops.close()
    assert together == alone


@pytest.mark.parametrize("int8_tokens", [Int8Tokens.GENERATED, Int8Tokens.NONE])
@pytest.mark.parametrize("kind", [QuantType.Q4_1, QuantType.Q5_0, QuantType.Q8_0])
def test_tokens_in_bf16_are_batch_invariant(kind: QuantType, int8_tokens: Int8Tokens) -> None:
    """Bits are not those of int8, or this would show nothing."""
    model = RandomModel([RandomLayer(kinds=(kind,) * 7)] * 2, head=kind)
    prompts = [[(7 * i + 3 * j) % 300 for j in range(9 + 3 * i)] for i in range(14)]

    def generate(ops: NativeOps, chunk_size: int | None = None) -> list[list[Any]]:
        driver = model.drive(ops, max_num_seqs=16, max_logprobs=5)
        return [
            [row.top for row in driver.generate(prompt, 8, chunk_size=chunk_size, num_logprobs=5)]
            for prompt in prompts
        ]

    ops = NativeOps(2, int8_tokens=int8_tokens)
    alone = generate(ops)
    assert generate(ops, chunk_size=7) == alone
    together = model.drive(ops, max_num_seqs=16).generate_together(prompts, 8)
    assert together == [[top[0][0] for top in rows] for rows in alone]
    text = prompts[0] + together[0]
    scored = model.drive(ops, max_logprobs=5).score(text, num_logprobs=5)[len(prompts[0]) - 1 :]
    as_prompt = [row.top for row in scored]
    assert (as_prompt == alone[0]) == (int8_tokens is Int8Tokens.NONE)
    ops.close()
    ops = NativeOps(2)
    assert generate(ops) != alone
    ops.close()


@pytest.mark.model
def test_a_context_beyond_the_models_is_refused_before_anything_is_read() -> None:
    stages: list[str] = []
    config = EngineConfig(model=ModelConfigOptions(max_model_len=10_000_000))
    with pytest.raises(ConfigError, match="more than the model was made for"):
        LLM.from_config(config, lambda stage, done, total: stages.append(stage))
    assert "Loading" not in stages


@pytest.mark.model
def test_a_context_beyond_the_pool_is_refused_before_weights_are_read() -> None:
    stages: list[str] = []
    config = EngineConfig(
        model=ModelConfigOptions(max_model_len=8192),
        cache=CacheOptions(kv_cache_memory_bytes=1 << 20),
    )
    with pytest.raises(ConfigError, match="the longest that fits is"):
        LLM.from_config(config, lambda stage, done, total: stages.append(stage))
    assert "Loading" not in stages
