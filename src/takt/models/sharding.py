"""What the sharding plan needs to know of a checkpoint."""

from __future__ import annotations

import numpy as np

from takt.loading.base import Checkpoint, TensorInfo
from takt.models.architecture import ModelConfig
from takt.models.tensor_names import tensor_names
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import ModelSizes, plan_shards
from takt.parallel.shard import Shard
from takt.types.precision import PrecisionInUse

_WEIGHTS_OF_A_STEP = ("q", "k", "v", "output", "gate", "up", "down")


def model_sizes(
    checkpoint: Checkpoint, config: ModelConfig, precision: PrecisionInUse | None = None
) -> ModelSizes:
    """Costs are the stored bytes that a decode step reads: what bounds it on a CPU.

    `precision` says what matrices are packed as (as stored if None): they are cut between groups
    of either type, so that a rank's columns become what they would in the whole matrix.
    """
    names = tensor_names(checkpoint.format, post_norms=config.post_norms)
    head = names.embedding if config.tie_word_embeddings else names.head
    return ModelSizes(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        output_group=_largest_group(checkpoint, config, precision, "output"),
        down_group=_largest_group(checkpoint, config, precision, "down"),
        layer_costs=tuple(
            float(sum(_bytes(checkpoint, names.of(r, i) + ".weight") for r in _WEIGHTS_OF_A_STEP))
            for i in range(config.num_layers)
        ),
        # A step reads the rows of its tokens alone.
        embedding_cost=0.0,
        head_cost=float(_bytes(checkpoint, head)),
    )


def whole_model(checkpoint: Checkpoint, config: ModelConfig) -> Shard:
    """All of it, for one rank."""
    (shard,) = plan_shards(model_sizes(checkpoint, config), ParallelLayout())
    return shard


def _largest_group(
    checkpoint: Checkpoint, config: ModelConfig, precision: PrecisionInUse | None, role: str
) -> int:
    names = tensor_names(checkpoint.format, post_norms=config.post_norms)
    largest = 1
    for i in range(config.num_layers):
        name = names.of(role, i) + ".weight"
        info = checkpoint.tensors.get(name)
        if info is None:
            continue  # an error of the loader's, which knows more
        packed = info.type
        if precision is not None:
            operator = names.operator_of(name)
            packed = precision.policy.packed_type(operator, info.type, info.shape[-1])
        largest = max(largest, info.type.group_size, packed.group_size)
    return largest


def _bytes(checkpoint: Checkpoint, name: str) -> int:
    info: TensorInfo | None = checkpoint.tensors.get(name)
    # A tensor that is missing is an error of the loader's, which knows more.
    if info is None:
        return 0
    return int(np.prod(info.shape)) // info.type.group_size * info.type.group_bytes
