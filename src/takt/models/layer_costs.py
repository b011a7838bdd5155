"""A model of the time that each layer and the head take in a step, from a checkpoint's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from takt.loading.base import Checkpoint
from takt.models.architecture import ModelConfig
from takt.models.tensor_names import TensorNames, tensor_names
from takt.parallel.stages import LayerCosts
from takt.types.kv import KVDtype
from takt.types.precision import Operator, PrecisionInUse

_WEIGHTS_OF_A_STEP = ("q", "k", "v", "output", "gate", "up", "down")

ROWS = 8
"""Sequences of the step: what a micro-batch has that shares a pipeline with others."""
CONTEXT = 512

READ_BYTES_S = 40e9
PRODUCTS_S = 340e9
"""A two-core server CPU with VNNI: bytes that its threads read from memory, and int8
multiplications with sums. Stages are divided by ratios of costs, so that only the quotient counts:
at 8.5 products a byte, few rows wait for the memory and many for the multipliers."""


def modelled_costs(
    checkpoint: Checkpoint, config: ModelConfig, precision: PrecisionInUse | None = None
) -> LayerCosts:
    """Seconds of a decode step of `ROWS` sequences at a context of `CONTEXT`.

    A matrix takes the longer of reading its bytes and of `ROWS` products with each of its elements;
    attention reads the keys and values that its window lets it see. `precision` says what matrices
    are packed as (as stored if None), and the type of keys and values (bf16 if None).
    """
    kv_dtype = KVDtype.BF16 if precision is None else precision.policy.kv_dtype
    names = tensor_names(checkpoint.format, post_norms=config.post_norms)

    def matrix(name: str, operator: Operator) -> float:
        info = checkpoint.tensors.get(name)
        if info is None:
            return 0.0  # an error of the loader's, which knows more
        num_rows, num_columns = info.shape
        packed = info.type
        if precision is not None:
            packed = precision.policy.packed_type(operator, info.type, num_columns)
        num_elements = num_rows * num_columns
        num_bytes = num_elements / packed.group_size * packed.group_bytes
        return max(num_bytes / READ_BYTES_S, ROWS * num_elements / PRODUCTS_S)

    return LayerCosts(
        layers=tuple(
            sum(_layer_matrices(names, i, matrix)) + _attention(config, i, kv_dtype)
            for i in range(config.num_layers)
        ),
        # A step reads the rows of its tokens alone.
        embedding=0.0,
        head=matrix(names.embedding if config.tie_word_embeddings else names.head, Operator.HEAD),
    )


def _layer_matrices(
    names: TensorNames, layer: int, cost: Callable[[str, Operator], float]
) -> Iterator[float]:
    for role in _WEIGHTS_OF_A_STEP:
        name = names.of(role, layer) + ".weight"
        yield cost(name, names.operator_of(name))


def _attention(config: ModelConfig, layer: int, kv_dtype: KVDtype) -> float:
    window = config.layers[layer].window
    num_seen = CONTEXT if window is None else min(CONTEXT, window)
    token_bytes = 2 * config.num_kv_heads * kv_dtype.head_bytes(config.head_dim)
    return ROWS * num_seen * token_bytes / READ_BYTES_S
