"""Costs of layers that were measured before, by model, machine and types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from takt.config import EngineConfig
from takt.engine.calibration_file import keep, kept_path, model_and_machine
from takt.parallel.stages import LayerCosts

_FORMAT = 2

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e3)]


class _Kept(msgspec.Struct):
    """What a file holds; whoever may write to the cache may have written anything."""

    layers: Annotated[list[_Seconds], msgspec.Meta(min_length=1)]
    embedding: Annotated[float, msgspec.Meta(ge=0, le=1e3)]
    head: _Seconds


def layer_cost_path(config: EngineConfig) -> Path:
    """The file of costs that hold for this configuration on this machine, for any ranks."""
    return kept_path("layer_costs", {**model_and_machine(config), "format": _FORMAT})


def read_layer_costs(path: Path, num_layers: int) -> LayerCosts | None:
    """Seconds; None if there are none of a model with so many layers."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    if len(kept.layers) != num_layers:
        return None
    return LayerCosts(tuple(kept.layers), kept.embedding, kept.head)


def write_layer_costs(path: Path, costs: LayerCosts) -> None:
    """`costs` are seconds. Where the file cannot be written, stages are divided by the model."""
    keep(
        path,
        {"layers": list(costs.layers), "embedding": costs.embedding, "head": costs.head},
    )
