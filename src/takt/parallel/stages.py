"""Layers over the stages of a pipeline, so that the slowest stage is as fast as can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from takt.errors import ConfigError
from takt.parallel.shard import Span


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What a step takes for each part of a model, in any one unit such as seconds."""

    layers: tuple[float, ...]
    embedding: float
    """Before the first layer."""
    head: float
    """After the last one."""


@dataclass(frozen=True, slots=True)
class StageDivision:
    """The layers of each stage of a pipeline, and where the costs that it went by are from."""

    spans: tuple[Span, ...]
    costs: LayerCosts
    source: str
    """measured, modelled or given."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Of a step's cost, by stage."""
        costs, last = self.costs, len(self.spans) - 1
        stages = [sum(costs.layers[span.first : span.end]) for span in self.spans]
        stages[0] += costs.embedding
        stages[last] += costs.head
        total = sum(stages)
        return tuple(stage / total for stage in stages)


def given_stages(num_layers: Sequence[int], num_model_layers: int) -> tuple[Span, ...]:
    """Stages of so many layers each; raises `ConfigError` if these are not the model's."""
    if sum(num_layers) != num_model_layers:
        partition = ",".join(map(str, num_layers))
        raise ConfigError(
            f"--pp-layer-partition {partition} is {sum(num_layers)} layers in all; the model has "
            f"{num_model_layers}"
        )
    ends = [0, *itertools.accumulate(num_layers)]
    return tuple(Span(first, end) for first, end in itertools.pairwise(ends))


def divide_layers(
    layer_costs: Sequence[float], num_stages: int, *, first_cost: float, last_cost: float
) -> tuple[Span, ...]:
    """Consecutive layers for each stage, one at least, with the least possible largest cost.

    Of the divisions that reach it, the most even one: that with the least sum of squared costs.
    `first_cost` and `last_cost` are of what the first stage does before its layers and the last
    one after them; costs are in any one unit. There must be a layer for each stage.
    """
    num_layers = len(layer_costs)
    total = [0.0, *itertools.accumulate(layer_costs)]

    def cost(stage: int, first: int, end: int) -> float:
        extra = first_cost * (stage == 0) + last_cost * (stage == num_stages - 1)
        return total[end] - total[first] + extra

    def best(score: Callable[[float], float], join: Callable[[float, float], float]) -> _Division:
        """The division whose joined scores of stages are least."""

        @cache
        def rest(stage: int, first: int) -> _Division:
            if stage == num_stages - 1:
                return score(cost(stage, first, num_layers)), (num_layers,)
            last_end = num_layers - (num_stages - 1 - stage)
            return min(
                (join(score(cost(stage, first, end)), behind), (end, *ends))
                for end in range(first + 1, last_end + 1)
                for behind, ends in [rest(stage + 1, end)]
            )

        return rest(0, 0)

    largest, _ = best(lambda one: one, max)
    # Sums of costs in another order may differ in their last bits.
    bound = largest * (1 + 1e-9)
    _, ends = best(
        lambda one: one * one if one <= bound else float("inf"), lambda one, others: one + others
    )
    return tuple(Span(first, end) for first, end in itertools.pairwise((0, *ends)))


_Division = tuple[float, tuple[int, ...]]
"""Score, and the layer at which each stage ends."""
