"""Opens a model file and drives it step by step, on either backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from step_driver import StepDriver
from takt.config import EngineConfig, ModelConfigOptions
from takt.engine.precision import resolve_policy
from takt.loading.checkpoint import open_checkpoint
from takt.models.config import ModelConfig, read_model_config
from takt.models.decoder import Decoder, load_decoder
from takt.ops.base import Ops
from takt.ops.create import create_ops
from takt.types.kv import KVDtype
from takt.types.precision import Int8Tokens, PrecisionInUse

BACKENDS = ("torch", "native")

UNIT_ROUNDOFF = 2.0**-24
"""Of fp32."""


@dataclass
class DrivenModel:
    config: ModelConfig
    decoder: Decoder
    driver: StepDriver
    ops: Ops


def precision_of(dtype: str) -> PrecisionInUse | None:
    """What `--dtype`, or `--quantization`, asks for; `auto` here keeps what is stored."""
    if dtype == "auto":
        return None
    option = "quantization" if dtype in ("int8", "int4", "none") else "dtype"
    config = EngineConfig(model=ModelConfigOptions(**{option: dtype}))
    return PrecisionInUse(resolve_policy(config))


def drive_model(
    path: Path,
    backend: str,
    *,
    dtype: str = "auto",
    kv_dtype: KVDtype = KVDtype.F32,
    num_threads: int | None = None,
    int8_tokens: Int8Tokens = Int8Tokens.ALL,
    **driver_options: Any,
) -> DrivenModel:
    """`driver_options` go to `StepDriver`; `max_logprobs` is the whole vocabulary if not given."""
    ops = create_ops(backend, num_threads, int8_tokens=int8_tokens)
    checkpoint = open_checkpoint(path)
    try:
        config = read_model_config(checkpoint)
        decoder = load_decoder(checkpoint, config, ops, precision=precision_of(dtype))
    finally:
        checkpoint.close()
    driver_options.setdefault("max_logprobs", config.vocab_size)
    driver = StepDriver(
        ops,
        decoder.forward,
        config.kv_groups(),
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        kv_dtype=kv_dtype,
        **driver_options,
    )
    return DrivenModel(config, decoder, driver, ops)


def fp32_logprob_tolerance(config: ModelConfig, logits: np.ndarray, num_positions: int) -> float:
    """Bound on the difference of a logprob between two orders of summation in fp32.

    A dot product of K terms errs by about sqrt(K) u of its magnitude when roundings are
    independent. A token passes seven products and sums in turn per layer (qkv, scores, mixed
    values, output, gate/up, their product, down) and the head; norms keep magnitudes near one, so
    relative errors add. Rope errs by u times the angle, at most the position, in an implementation
    that multiplies angles in fp32. 4 is for the growth of an error through later layers, and the
    logsumexp doubles what a logit errs by.
    """
    widest = max(config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    products = (7 * config.num_layers + 1) * np.sqrt(widest)
    angles = config.num_layers * num_positions
    return float(2 * 4 * (products + angles) * UNIT_ROUNDOFF * np.abs(logits).max())


def int8_logprob_bound(spread: float) -> float:
    """Bound on the root mean square error of logprobs when products take int8 activations.

    A group of 32 activations is rounded to steps of its largest over 127, an error of at most
    step / sqrt(12) in the mean square. The largest's square is at most the sum over its group, 32
    mean squares; so a row errs by at most e = sqrt(32) / (127 sqrt(12)) = 1.3 % of its length,
    whatever its outliers. (bfloat16 keys and values err by 0.2 %, which is lost in that.) The
    residual sums what the blocks add, each behind two such products; the head is a third: in
    quadrature e sqrt(3) of `spread`, the standard deviation of logits over the vocabulary. 4 is for
    the growth of an error through later layers, as in fp32.
    """
    row_error = np.sqrt(32) / (127 * np.sqrt(12))
    return float(4 * np.sqrt(3) * row_error * spread)


def bf16_logprob_bound(spread: float) -> float:
    """The same where products take bf16 activations and weights, and the cache is float32.

    Either is rounded to 8 bits, to steps of at most 2^-7 of a number: 2^-7 / sqrt(12) of it in the
    mean square, and sqrt(2) for both. The rest is as in `int8_logprob_bound`.
    """
    return float(4 * np.sqrt(3) * np.sqrt(2) * 2.0**-7 / np.sqrt(12) * spread)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last dimension, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
