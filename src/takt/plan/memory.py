"""Whether a model and its KV fit on the devices, and how many tokens of KV do."""

from __future__ import annotations

from dataclasses import dataclass

from takt.plan.hardware import Accelerator
from takt.plan.model_shape import ModelShape
from takt.plan.precision import Precision
from takt.plan.topology import Topology


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Bytes of the device that holds most; KV in tokens of one replica."""

    weights_bytes: float
    reserve_bytes: float
    capacity_bytes: float
    kv_bytes_per_token: float
    """Of one device."""
    num_kv_tokens: int
    """Negative or zero: not even the weights fit."""


def memory_fit(
    model: ModelShape, accelerator: Accelerator, topology: Topology, precision: Precision
) -> MemoryFit:
    """Weights by TP and PP; embedding and head are on the end stages, divided by TP."""
    layers_of_stage = -(-model.num_layers // topology.pp)
    blocks = model.block_bytes(precision.weight_bytes) / model.num_layers * layers_of_stage
    head = model.head_bytes(precision.head_bytes)
    ends = head if model.is_tied or topology.pp > 1 else 2 * head
    weights = (blocks + ends) / topology.tp
    heads = max(1, model.num_kv_heads // topology.tp)
    per_token = 2.0 * layers_of_stage * heads * model.head_dim * precision.kv_bytes
    room = accelerator.memory_bytes - accelerator.reserve_bytes - weights
    return MemoryFit(
        weights_bytes=weights,
        reserve_bytes=accelerator.reserve_bytes,
        capacity_bytes=accelerator.memory_bytes,
        kv_bytes_per_token=per_token,
        num_kv_tokens=int(room // per_token),
    )
