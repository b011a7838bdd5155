"""From `--dtype`, `--quantization` and the types of activations to a precision policy."""

from __future__ import annotations

from dataclasses import replace

from takt.config import EngineConfig
from takt.errors import ConfigError
from takt.ops.create import has_matrix_unit
from takt.types.kv import KVDtype
from takt.types.precision import (
    Int8Tokens,
    Operator,
    OperatorPrecision,
    PrecisionPolicy,
    uniform,
)
from takt.types.quant import QuantType

_DTYPES = {
    "float32": QuantType.F32,
    "bfloat16": QuantType.BF16,
    "float16": QuantType.F16,
}

AUTO = OperatorPrecision(floats=QuantType.Q8_0)
"""Quantised weights stay as they are. Float weights become int8, in groups of 32 with an f16 scale:
of what keeps the perplexity within 1 % of fp32 the fewest bytes a step, see docs/precision.md."""


def with_activations(config: EngineConfig) -> EngineConfig:
    """`config` with an `auto` of --prefill-activation-dtype decided, for all ranks alike.

    It goes by this machine. Ranks on Ray may be on hosts of any kind: there it is int8.
    """
    model = config.model
    if model.prefill_activation_dtype != "auto":
        return config
    is_here = config.parallel.distributed_executor_backend != "ray"
    takes_bf16 = is_here and _why_not_quantised(config) is None and has_matrix_unit()
    activations = "bfloat16" if takes_bf16 else "int8"
    return replace(config, model=replace(model, prefill_activation_dtype=activations))


def _why_not_quantised(config: EngineConfig) -> str | None:
    """The option under which no product takes quantised weights, or no native one; else None."""
    model = config.model
    if model.dtype != "auto":
        return f"--dtype {model.dtype}"
    if model.quantization == "none":
        return "--quantization none"
    return None if model.backend == "native" else f"--backend {model.backend}"


def resolve_policy(config: EngineConfig) -> PrecisionPolicy:
    """The policy that the options ask for; raises `ConfigError` if they contradict each other."""
    dtype, quantization = config.model.dtype, config.model.quantization
    if dtype != "auto" and quantization in ("int8", "int4"):
        raise ConfigError(
            f"--quantization {quantization} computes with int8 activations, --dtype {dtype} does "
            "not: leave out one of them"
        )
    kv_dtype = resolve_kv_dtype(config)
    int8_tokens = _int8_tokens(config)
    if dtype != "auto":
        kind = _DTYPES[dtype]
        return PrecisionPolicy(dtype, uniform(OperatorPrecision(kind, kind)), kv_dtype)
    if quantization == "int8":
        int8 = OperatorPrecision(QuantType.Q8_0, QuantType.Q8_0)
        return PrecisionPolicy("int8", uniform(int8), kv_dtype, int8_tokens)
    if quantization == "int4":
        return PrecisionPolicy("int4", _int4(), kv_dtype, int8_tokens)
    if quantization == "none":
        none = OperatorPrecision(floats=None, quantized=QuantType.BF16)
        return PrecisionPolicy("none", uniform(none), kv_dtype, int8_tokens)
    return PrecisionPolicy("auto", uniform(AUTO), kv_dtype, int8_tokens)


def _int8_tokens(config: EngineConfig) -> Int8Tokens:
    model = with_activations(config).model
    is_bf16 = {
        "prefill": model.prefill_activation_dtype == "bfloat16",
        "decode": model.decode_activation_dtype == "bfloat16",
    }
    why_not = _why_not_quantised(config)
    for phase, asked in is_bf16.items():
        if asked and why_not is not None:
            raise ConfigError(
                f"--{phase}-activation-dtype bfloat16 is for quantised weights on the native "
                f"backend: leave out {why_not}"
            )
    if is_bf16["decode"] and not is_bf16["prefill"]:
        raise ConfigError(
            "--decode-activation-dtype bfloat16 needs --prefill-activation-dtype bfloat16, which "
            "auto chooses only where a matrix unit multiplies it, and never on Ray"
        )
    if not is_bf16["prefill"]:
        return Int8Tokens.ALL
    return Int8Tokens.NONE if is_bf16["decode"] else Int8Tokens.GENERATED


def resolve_kv_dtype(config: EngineConfig) -> KVDtype:
    """What the KV cache stores: the asked type, else as precise as what is computed beside it."""
    asked = config.cache.kv_cache_dtype
    if asked == "auto":
        if config.model.dtype == "float32":
            return KVDtype.F32
        return KVDtype.INT8 if _why_not_quantised(config) is None else KVDtype.BF16
    return KVDtype.FP8_E4M3 if asked == "fp8" else KVDtype.of_label(asked)


def _int4() -> dict[Operator, OperatorPrecision]:
    """The head decides between near tokens, and a table is read one row at a time: both int8."""
    int4 = OperatorPrecision(QuantType.Q4_1, QuantType.Q4_1)
    int8 = OperatorPrecision(QuantType.Q8_0, QuantType.Q8_0)
    return uniform(int4) | {Operator.EMBED: int8, Operator.HEAD: int8}
