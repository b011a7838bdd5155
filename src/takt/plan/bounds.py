"""What no software can beat: bytes over bandwidth and operations over peaks, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from takt.plan.communication import all_reduce_s, hop_s, wire_bound_s
from takt.plan.hardware import Accelerator, Cluster
from takt.plan.model_shape import ModelShape
from takt.plan.precision import Precision
from takt.plan.topology import Topology
from takt.plan.workload import Workload

_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class PhysicalBounds:
    """Seconds that one request on idle devices takes at the least.

    `token_s` and `ttft_s` count peaks alone; `token_with_latency_s` adds the measured latencies of
    all-reduces and hops, which no topology of today's software avoids. A prompt is cut into equal
    chunks of the best size, so that the stages of a pipeline overlap.
    """

    weight_read_s: float
    kv_read_s: float
    wire_s: float
    communication_s: float
    """With latencies; `wire_s` is its part at the links' peaks."""
    token_s: float
    token_with_latency_s: float
    ttft_s: float
    ttft_chunk: int
    e2e_s: float
    e2e_with_latency_s: float


def physical_bounds(
    model: ModelShape,
    accelerator: Accelerator,
    topology: Topology,
    precision: Precision,
    workload: Workload,
) -> PhysicalBounds:
    """Bounds of one topology for the mean lengths of the workload."""
    bandwidth = accelerator.bandwidth_bytes_s
    blocks = model.block_bytes(precision.weight_bytes) / topology.tp
    if model.num_experts:
        blocks *= model.active_block_params / model.block_params
    head = model.head_bytes(precision.head_bytes) / topology.tp
    weight_read = (blocks + head) / bandwidth
    context = workload.prompt_tokens + workload.output_tokens / 2
    seen = model.kv_tokens_seen(context, 1)
    kv_read = model.kv_elements_per_token * precision.kv_bytes * seen / topology.tp / bandwidth
    message = model.hidden_size * _ACTIVATION_BYTES
    num_reduces = 2 * model.num_layers
    num_hops = topology.pp - 1
    wire = num_reduces * wire_bound_s(accelerator, topology.tp, message)
    wire += num_hops * message / accelerator.device_link_bytes_s
    communication = num_reduces * all_reduce_s(accelerator, topology.tp, message)
    communication += num_hops * hop_s(accelerator, message, crosses_nodes=False)
    compute = model.decode_flops(context) / topology.tp / accelerator.flops(precision.arithmetic)
    ttft, chunk = _pipelined_prefill(
        model, accelerator, topology, precision, workload.prompt_tokens
    )
    token = max(weight_read + kv_read, compute) + wire
    with_latency = max(weight_read + kv_read, compute) + communication
    num_gaps = workload.output_tokens - 1
    return PhysicalBounds(
        weight_read_s=weight_read,
        kv_read_s=kv_read,
        wire_s=wire,
        communication_s=communication,
        token_s=token,
        token_with_latency_s=with_latency,
        ttft_s=ttft,
        ttft_chunk=chunk,
        e2e_s=ttft + num_gaps * token,
        e2e_with_latency_s=ttft + num_gaps * with_latency,
    )


@dataclass(frozen=True, slots=True)
class ClusterFloors:
    """Bounds with every device working on one request, perfectly and without communication."""

    token_s: float
    prefill_s: float
    e2e_s: float


def cluster_floors(
    model: ModelShape, cluster: Cluster, precision: Precision, workload: Workload
) -> ClusterFloors:
    accelerator, count = cluster.accelerator, cluster.num_devices
    blocks = model.block_bytes(precision.weight_bytes)
    if model.num_experts:
        blocks *= model.active_block_params / model.block_params
    read = (blocks + model.head_bytes(precision.head_bytes)) / count
    token = read / accelerator.bandwidth_bytes_s
    peak = accelerator.flops(precision.arithmetic)
    prefill = max(token, model.prefill_flops(workload.prompt_tokens) / count / peak)
    return ClusterFloors(token, prefill, prefill + (workload.output_tokens - 1) * token)


def _pipelined_prefill(
    model: ModelShape,
    accelerator: Accelerator,
    topology: Topology,
    precision: Precision,
    num_tokens: int,
) -> tuple[float, int]:
    """(seconds, chunk): the best of (ceil(T/c) + PP - 1) stage times over chunks c.

    A stage reads its weights for each chunk or computes it, whichever takes longer.
    """
    share = topology.tp * topology.pp
    blocks = model.block_bytes(precision.weight_bytes) / share
    if model.num_experts:
        blocks *= model.active_block_params / model.block_params
    read = blocks / accelerator.bandwidth_bytes_s
    peak = accelerator.flops(precision.arithmetic)
    operations = 2.0 * model.active_block_params / share
    best, best_chunk = float("inf"), num_tokens
    num_chunks = 1
    while num_chunks <= num_tokens:
        chunk = -(-num_tokens // num_chunks)
        stage = max(read, operations * chunk / peak)
        time = (-(-num_tokens // chunk) + topology.pp - 1) * stage
        if time < best:
            best, best_chunk = time, chunk
        if stage <= read:
            break  # smaller chunks only add reads
        num_chunks += 1
    return best, best_chunk
