"""The sharding plan: which part of a model each rank holds, or which sizes would work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from takt.errors import ConfigError
from takt.parallel.layout import ParallelLayout
from takt.parallel.shard import Shard, Span
from takt.parallel.stages import LayerCosts, divide_layers, given_stages

PANEL_ROWS = 16
"""Weights are packed in panels of so many rows: splits of rows that we choose fall between them."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What of a model the plan depends on.

    A packed row can be cut only between its groups: `output_group` and `down_group` are the
    columns of the largest group in attention's output matrices and in the MLP's down matrices
    (1 where elements are stored one by one).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    output_group: int
    down_group: int
    costs: LayerCosts


def plan_shards(
    sizes: ModelSizes, layout: ParallelLayout, stage_layers: Sequence[int] | None = None
) -> tuple[Shard, ...]:
    """The shard of each rank; raises `ConfigError` naming the sizes that work.

    `stage_layers` are the layers of each stage; if not given they are divided by `sizes.costs`.
    """
    _check_tensor_size(sizes, layout.tensor_size)
    stages = plan_stages(sizes, layout.num_stages, stage_layers)
    return tuple(
        _shard(sizes, layout.tensor_size, layout.tensor_rank_of(rank), stages[stage])
        for rank in range(layout.num_ranks)
        for stage in [layout.stage_of(rank)]
    )


def plan_stages(
    sizes: ModelSizes, num_stages: int, stage_layers: Sequence[int] | None = None
) -> tuple[Span, ...]:
    """Layers of each stage: as given, or divided by `sizes.costs`."""
    costs = sizes.costs
    _check_num_stages(sizes, num_stages)
    if stage_layers is not None:
        return given_stages(stage_layers, len(costs.layers))
    return divide_layers(costs.layers, num_stages, first_cost=costs.embedding, last_cost=costs.head)


def tensor_sizes(sizes: ModelSizes) -> list[int]:
    """Sizes of a tensor-parallel group that the model allows."""
    return [n for n in range(1, sizes.num_heads + 1) if _obstacle(sizes, n) is None]


def _obstacle(sizes: ModelSizes, num_ranks: int) -> str | None:
    """Why a group of `num_ranks` cannot share the model; None if it can."""
    if num_ranks == 1:
        return None
    if sizes.num_heads % num_ranks:
        return f"{sizes.num_heads} attention heads cannot be shared evenly"
    kv_heads = sizes.num_kv_heads
    if kv_heads % num_ranks and num_ranks % kv_heads:
        return f"{kv_heads} KV heads cannot be shared or copied evenly"
    output_columns = sizes.num_heads // num_ranks * sizes.head_dim
    if output_columns % sizes.output_group:
        return (
            f"{output_columns} columns of attention's output matrix do not fill groups of "
            f"{sizes.output_group}"
        )
    granule = math.lcm(PANEL_ROWS, sizes.down_group)
    if sizes.intermediate_size % (num_ranks * granule):
        return (
            f"{sizes.intermediate_size} inner features of the MLP cannot be shared evenly in "
            f"groups of {granule}"
        )
    if -(-sizes.vocab_size // PANEL_ROWS) < num_ranks:
        return f"a vocabulary of {sizes.vocab_size} has too few panels of {PANEL_ROWS}"
    return None


def _check_tensor_size(sizes: ModelSizes, num_ranks: int) -> None:
    obstacle = _obstacle(sizes, num_ranks)
    if obstacle is not None:
        works = ", ".join(map(str, tensor_sizes(sizes)))
        raise ConfigError(
            f"--tensor-parallel-size {num_ranks} does not fit this model: {obstacle}; "
            f"sizes that work: {works}"
        )


def _check_num_stages(sizes: ModelSizes, num_stages: int) -> None:
    num_layers = len(sizes.costs.layers)
    if num_stages > num_layers:
        raise ConfigError(
            f"--pipeline-parallel-size {num_stages} is more than the model's {num_layers} layers; "
            f"sizes that work: 1 to {num_layers}"
        )


def _shard(sizes: ModelSizes, tensor_size: int, tensor_rank: int, layers: Span) -> Shard:
    borders = _vocab_borders(sizes.vocab_size, tensor_size)
    if sizes.num_kv_heads >= tensor_size:
        kv_heads = _even(sizes.num_kv_heads, tensor_size, tensor_rank)
    else:
        head = tensor_rank * sizes.num_kv_heads // tensor_size
        kv_heads = Span(head, head + 1)
    return Shard(
        tensor_rank=tensor_rank,
        tensor_size=tensor_size,
        layers=layers,
        num_layers=len(sizes.costs.layers),
        heads=_even(sizes.num_heads, tensor_size, tensor_rank),
        kv_heads=kv_heads,
        mlp=_even(sizes.intermediate_size, tensor_size, tensor_rank),
        vocab=Span(borders[tensor_rank], borders[tensor_rank + 1]),
        vocab_borders=borders,
    )


def _even(count: int, num_parts: int, part: int) -> Span:
    size = count // num_parts
    return Span(part * size, (part + 1) * size)


def _vocab_borders(vocab_size: int, num_parts: int) -> tuple[int, ...]:
    panels = -(-vocab_size // PANEL_ROWS)
    inner = [PANEL_ROWS * (panels * part // num_parts) for part in range(num_parts)]
    return (*inner, vocab_size)
