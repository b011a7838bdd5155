"""P99s of one replica under load in closed form: what candidates are ranked and pruned by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from takt.plan.memory import MemoryFit
from takt.plan.queueing.batch_server import BatchLoad, BatchServer
from takt.plan.queueing.mg1 import MG1
from takt.plan.queueing.service import DeterministicService
from takt.plan.step_cost import StepCost
from takt.plan.workload import Workload

_P99 = 0.99
_LEAST_CHUNK = 16


@dataclass(frozen=True, slots=True)
class StepLimits:
    """A replica's `--max-num-batched-tokens` and `--max-num-seqs`."""

    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """Seconds; `batch` is None and all are infinite where there is no stable state."""

    batch: BatchLoad | None
    itl_p99_s: float
    ttft_p99_s: float
    e2e_p99_s: float
    prefill_load: float
    """Part of the time that steps with prompts would take; the queue of prompts is stable below
    1."""


_UNSTABLE = LoadEstimate(None, math.inf, math.inf, math.inf, math.inf)


def max_batch(memory: MemoryFit, workload: Workload, limits: StepLimits) -> int:
    """Sequences of the workload's longest context that fit, by KV and by seats."""
    return min(limits.max_num_seqs, memory.num_kv_tokens // workload.longest_tokens)


def estimate_load(
    cost: StepCost, memory: MemoryFit, workload: Workload, dp: int, limits: StepLimits
) -> LoadEstimate:
    """One replica's share of the load; a pipeline's micro-batches are servers of their own."""
    lanes = cost.topology.pp
    rate = workload.requests_per_s / dp / lanes
    seats = max_batch(memory, workload, limits) / lanes
    if seats < 1:
        return _UNSTABLE
    context = workload.mean_context
    tokens = workload.prompt_tokens
    budget = limits.max_num_batched_tokens

    def chunk_of(batch: float) -> int:
        return min(tokens, max(_LEAST_CHUNK, budget - math.ceil(batch)))

    def decode_s(batch: float) -> float:
        return cost.decode_s(max(1, round(batch)), context)

    def mixed_s(batch: float) -> float:
        chunk = chunk_of(batch)
        return cost.mixed_s(max(0, round(batch)), context, chunk, max(0, tokens - chunk) // 2)

    server: BatchServer | None = None
    load: BatchLoad | None = None
    steps = 1.0
    for _ in range(3):  # the batch decides how much of a step is left for prompts
        server = BatchServer(rate, workload.output_tokens, steps, decode_s, mixed_s, seats)
        load = server.solve()
        if load is None:
            return _UNSTABLE
        needed = float(-(-tokens // chunk_of(1 + load.mean_batch)))
        if needed == steps:
            break
        steps = needed
    assert server is not None and load is not None
    chunk = chunk_of(1 + load.mean_batch)
    # What a prompt leaves of its last step the next one takes; its own wait ends with a short one.
    queue = MG1(rate, DeterministicService(tokens / chunk * load.mixed_s))
    if queue.load >= 1:
        return _UNSTABLE
    last = tokens - (math.ceil(tokens / chunk) - 1) * chunk
    own = (tokens - last) / chunk * load.mixed_s
    own += cost.mixed_s(round(load.mean_batch), context, last, tokens - last)
    ttft = load.step_s + queue.wait_quantile_s(_P99) + own
    high = load.mean_batch + 1.5 * math.sqrt(load.mean_batch)
    slower = server.decode_s(1 + high) / load.decode_s
    e2e = ttft + (workload.output_tokens - 1) * load.step_s * slower
    return LoadEstimate(
        batch=load,
        itl_p99_s=server.itl_quantile_s(load, _P99) if workload.output_tokens > 1 else 0.0,
        ttft_p99_s=ttft,
        e2e_p99_s=e2e,
        prefill_load=queue.load,
    )
