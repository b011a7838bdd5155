"""What the sharding plan needs to know of a checkpoint."""

from __future__ import annotations

from takt.loading.base import Checkpoint
from takt.models.architecture import ModelConfig
from takt.models.layer_costs import modelled_costs
from takt.models.tensor_names import tensor_names
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import ModelSizes, plan_shards
from takt.parallel.shard import Shard
from takt.types.precision import PrecisionInUse


def model_sizes(
    checkpoint: Checkpoint, config: ModelConfig, precision: PrecisionInUse | None = None
) -> ModelSizes:
    """`precision` says what matrices are packed as (as stored if None): they are cut between groups
    of either type, so that a rank's columns become what they would in the whole matrix.
    """
    return ModelSizes(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        output_group=_largest_group(checkpoint, config, precision, "output"),
        down_group=_largest_group(checkpoint, config, precision, "down"),
        costs=modelled_costs(checkpoint, config, precision),
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
