"""Storage types of weights and KV, and the arithmetic that goes with them."""

from __future__ import annotations

from dataclasses import dataclass

from takt.plan.errors import unknown_name
from takt.plan.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model's blocks and KV are stored; the head stays at 16 bits."""

    name: str
    """Of the weights' type, as it was asked for."""
    weights: str
    """Name of the GEMM curve: bf16, fp8, int8, int4 or packed."""
    weight_bytes: float | None
    """None: as the model's file packs them, or 16 bits if only its shape is known."""
    arithmetic: str
    kv_dtype: str
    kv_bytes: float
    head_bytes: float | None = 2.0

    @property
    def label(self) -> str:
        return self.name if self.kv_dtype == "bf16" else f"{self.name}, {self.kv_dtype} KV"


_WEIGHTS: dict[str, tuple[str, float | None, str]] = {
    "bf16": ("bf16", 2.0, "bf16"),
    "fp16": ("bf16", 2.0, "bf16"),
    "fp8": ("fp8", 1.0, "fp8"),
    "int8": ("int8", 1.0, "int8"),
    # Groups of 128 with a 16-bit scale and a 16-bit zero point: 4.25 bits.
    "int4": ("int4", 0.53125, "bf16"),
    # A device without kernels for the file's types computes in 16 bits.
    "packed": ("packed", None, "packed"),
}
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "fp8_e4m3": "fp8"}
# int8 has a 16-bit scale per token and head, of 64 elements at the least usual.
_KV = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0 + 2.0 / 64.0}

WEIGHT_DTYPES = tuple(_WEIGHTS)


def parse_precision(weights: str, kv_dtype: str = "auto") -> Precision:
    """Raises `PlanInputError` with the nearest names for an unknown type."""
    name = _ALIASES.get(weights, weights)
    if name not in _WEIGHTS:
        raise unknown_name("--dtype", weights, _WEIGHTS)
    kv_name = _ALIASES.get(kv_dtype, kv_dtype)
    if kv_name in ("auto", "fp16"):
        kv_name = "bf16"  # either is two bytes
    if kv_name not in _KV:
        raise unknown_name("--kv-cache-dtype", kv_dtype, ["auto", *_KV])
    curve, weight_bytes, arithmetic = _WEIGHTS[name]
    head_bytes = 2.0 if weight_bytes is not None else None
    return Precision(name, curve, weight_bytes, arithmetic, kv_name, _KV[kv_name], head_bytes)


def precision_for(model: ModelShape, weights: str, kv_dtype: str = "auto") -> Precision:
    """As `parse_precision`; `auto` is what the model's file holds, fp16 without a file, and int8 KV
    beside a file's own types, as the server has it."""
    if weights == "auto":
        weights = "packed" if model.file_block_bytes is not None else "fp16"
    if weights == "packed" and kv_dtype == "auto":
        kv_dtype = "int8"
    return parse_precision(weights, kv_dtype)
