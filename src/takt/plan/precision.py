"""Storage types of weights and KV, and the arithmetic that goes with them."""

from __future__ import annotations

from dataclasses import dataclass

from takt.plan.errors import unknown_name


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model's blocks and KV are stored; the head stays at 16 bits."""

    weights: str
    """Name of the GEMM curve: bf16, fp8, int8 or int4."""
    weight_bytes: float
    arithmetic: str
    kv_dtype: str
    kv_bytes: float
    head_bytes: float = 2.0

    @property
    def label(self) -> str:
        return self.weights if self.kv_dtype == "bf16" else f"{self.weights}, {self.kv_dtype} KV"


_WEIGHTS = {
    "bf16": ("bf16", 2.0, "bf16"),
    "fp16": ("bf16", 2.0, "bf16"),
    "fp8": ("fp8", 1.0, "fp8"),
    "int8": ("int8", 1.0, "int8"),
    # Groups of 128 with a 16-bit scale and a 16-bit zero point: 4.25 bits.
    "int4": ("int4", 0.53125, "bf16"),
}
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "auto": "bf16", "fp8_e4m3": "fp8"}
_KV = {"bf16": 2.0, "fp8": 1.0}

WEIGHT_DTYPES = tuple(_WEIGHTS)


def parse_precision(weights: str, kv_dtype: str = "auto") -> Precision:
    """Raises `PlanInputError` with the nearest names for an unknown type."""
    name = _ALIASES.get(weights, weights)
    if name not in _WEIGHTS:
        raise unknown_name("--dtype", weights, _WEIGHTS)
    kv_name = {"fp16": "bf16"}.get(_ALIASES.get(kv_dtype, kv_dtype), _ALIASES.get(kv_dtype, kv_dtype))
    if kv_name not in _KV:
        raise unknown_name("--kv-cache-dtype", kv_dtype, _KV)
    curve, weight_bytes, arithmetic = _WEIGHTS[name]
    return Precision(curve, weight_bytes, arithmetic, kv_name, _KV[kv_name])
