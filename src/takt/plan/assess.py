"""The ladder for one topology: physics, silicon, load; simulation confirms what is left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from takt.plan.bounds import PhysicalBounds, physical_bounds
from takt.plan.hardware import Accelerator
from takt.plan.load_estimate import LoadEstimate, StepLimits, estimate_load
from takt.plan.memory import MemoryFit, memory_fit
from takt.plan.model_shape import ModelShape
from takt.plan.precision import Precision
from takt.plan.simulate.arrivals import poisson_arrivals
from takt.plan.simulate.durations import NoisyDuration
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.plan.step_cost import StepCost
from takt.plan.topology import Topology
from takt.plan.verdict import Assessment, Constraint, Latencies, Verdict
from takt.plan.workload import Targets, Workload

STEP_BUDGETS = (32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
"""Values of --max-num-batched-tokens that are tried."""
MAX_NUM_SEQS = 256
PRUNE_RATIO = 1.15
"""Estimates up to this far above a target are still worth a simulation."""
ROOMY_RATIO = 0.85
"""Estimates this far below all targets leave a choice of the step budget."""
_LABELS = {"itl": "P99 ITL", "ttft": "P99 TTFT", "e2e": "P99 end to end"}


@dataclass(frozen=True, slots=True)
class Caution:
    """How much worse than the model reality may be before a HOLD breaks."""

    margin: float = 0.10
    """Of a request alone: SILICON_NO if its time with this on top exceeds a target."""
    bias: float = 1.07
    """Simulated steps are this much longer than the model's."""
    noise: float = 0.05
    """Coefficient of variation of a step's time."""
    num_requests: int = 1500
    seed: int = 20240229


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be held, whatever the topology."""

    model: ModelShape
    accelerator: Accelerator
    workload: Workload
    targets: Targets
    caution: Caution


def assess(question: Question, topology: Topology, precision: Precision) -> Assessment:
    """Physics, silicon and the closed forms of load; never HOLD, at best CANDIDATE."""
    model, accelerator = question.model, question.accelerator
    bounds = physical_bounds(model, accelerator, topology, precision, question.workload)
    memory = memory_fit(model, accelerator, topology, precision)
    no = _physical_no(question, bounds, memory)
    if no is not None:
        constraint, ratio = no
        return Assessment(
            topology, precision, Verdict.PHYSICAL_NO, constraint, bounds, memory, ratio=ratio
        )
    cost = StepCost(model, accelerator, topology, precision)
    alone = alone_latencies(cost, question.workload)
    name, ratio = alone.worst(question.targets)
    ratio *= 1 + question.caution.margin
    base = Assessment(
        topology,
        precision,
        Verdict.SILICON_NO,
        _silicon_constraint(question, cost, alone, name),
        bounds,
        memory,
        alone=alone,
        ratio=ratio,
    )
    return base if ratio > 1 else _assess_load(question, cost, base)


def confirm(question: Question, candidate: Assessment) -> Assessment:
    """Simulates one replica with longer, noisy steps; HOLD if every P99 stays within its target."""
    assert candidate.limits is not None
    predicted = simulated_p99(question, candidate.topology, candidate.precision, candidate)
    name, ratio = predicted.worst(question.targets)
    constraint = _target_constraint(question.targets, name, predicted, "simulated")
    return replace(
        candidate,
        verdict=Verdict.HOLD if ratio <= 1 else Verdict.LOAD_NO,
        constraint=constraint,
        predicted=predicted,
        was_simulated=True,
        ratio=ratio,
    )


def simulated_p99(
    question: Question, topology: Topology, precision: Precision, assessment: Assessment
) -> Latencies:
    """P99s of one replica; its share of Poisson arrivals is Poisson too."""
    assert assessment.limits is not None
    caution, workload = question.caution, question.workload
    cost = StepCost(question.model, question.accelerator, topology, precision)
    server = SimulatedServer(
        duration=NoisyDuration(cost, noise=caution.noise, bias=caution.bias, seed=caution.seed),
        max_num_seqs=assessment.limits.max_num_seqs,
        max_num_batched_tokens=assessment.limits.max_num_batched_tokens,
        num_kv_tokens=assessment.memory.num_kv_tokens,
        num_stages=topology.pp,
    )
    arrivals = poisson_arrivals(
        workload.requests_per_s / topology.dp,
        caution.num_requests,
        workload.prompt,
        workload.output,
        caution.seed,
    )
    result = simulate(server, arrivals)
    itl = result.itl_quantile_s(0.99)
    return Latencies(
        0.0 if math.isnan(itl) else itl,
        result.ttft_quantile_s(0.99),
        result.e2e_quantile_s(0.99),
    )


def alone_latencies(cost: StepCost, workload: Workload) -> Latencies:
    """One request on an idle replica, its prompt cut as best for it."""
    token = cost.decode_s(1, workload.mean_context)
    if workload.output_tokens == 1:
        token = 0.0
    ttft = min(_prefill_s(cost, workload.prompt_tokens, budget) for budget in STEP_BUDGETS)
    return Latencies(token, ttft, ttft + (workload.output_tokens - 1) * token)


def _prefill_s(cost: StepCost, num_tokens: int, budget: int) -> float:
    """Chunks of a prompt one after the other; stages of a pipeline overlap within a lane never."""
    total, done = 0.0, 0
    while done < num_tokens:
        chunk = min(budget, num_tokens - done)
        total += cost.mixed_s(0, 0, chunk, done)
        done += chunk
    return total


def _assess_load(question: Question, cost: StepCost, base: Assessment) -> Assessment:
    """The step budget that meets the targets with room to spare and first tokens soonest.

    Without one, that which misses the targets by least.
    """
    options = []
    for budget in STEP_BUDGETS:
        limits = StepLimits(budget, min(MAX_NUM_SEQS, budget))
        load = estimate_load(cost, base.memory, question.workload, base.topology.dp, limits)
        options.append((estimated(load, question.caution).worst(question.targets)[1], limits, load))
    roomy = [option for option in options if option[0] <= ROOMY_RATIO]
    if roomy:
        ratio, limits, load = min(roomy, key=lambda option: option[2].ttft_p99_s)
    else:
        ratio, limits, load = min(options, key=lambda option: option[0])
    predicted = estimated(load, question.caution)
    name, _ = predicted.worst(question.targets)
    if load.batch is None:
        constraint = _capacity_constraint(question, base)
    else:
        constraint = _target_constraint(question.targets, name, predicted, "estimated")
    return replace(
        base,
        verdict=Verdict.CANDIDATE if ratio <= PRUNE_RATIO else Verdict.LOAD_NO,
        constraint=constraint,
        limits=limits,
        load=load,
        predicted=predicted,
        ratio=ratio,
    )


def estimated(load: LoadEstimate, caution: Caution) -> Latencies:
    """With the caution of the simulation, whose steps are longer and noisy.

    The P99 of gaps that are alike but for their noise lies 2.3 deviations above the mean; it is
    less where gaps differ anyway. Sums over many steps average the noise out.
    """
    bias = caution.bias
    itl = load.itl_p99_s * bias * (1 + 2 * caution.noise)
    return Latencies(itl, load.ttft_p99_s * bias, load.e2e_p99_s * bias)


def _physical_no(
    question: Question, bounds: PhysicalBounds, memory: MemoryFit
) -> tuple[Constraint, float] | None:
    longest = question.workload.longest_tokens
    if memory.num_kv_tokens < longest:
        return _memory_constraint(question, memory), float("inf")
    token = bounds.token_s if question.workload.output_tokens > 1 else 0.0
    least = Latencies(token, bounds.ttft_s, bounds.e2e_s)
    name, ratio = least.worst(question.targets)
    if ratio <= 1:
        return None
    limit, needed = getattr(question.targets, f"{name}_s"), getattr(least, f"{name}_s")
    reasons = {
        "itl": f"reading the weights takes {_ms(bounds.weight_read_s)} per token, "
        f"{_ms(bounds.token_with_latency_s)} with KV, all-reduces and hops",
        "ttft": f"the prompt takes {_ms(bounds.ttft_s)} at peak arithmetic and bandwidth",
        "e2e": f"prompt and {question.workload.output_tokens - 1} further tokens take "
        f"{_ms(bounds.e2e_with_latency_s)}, reading the weights {_ms(bounds.weight_read_s)} "
        "for each",
    }
    text = f"{_LABELS[name]} {_ms(limit)}: {reasons[name]}"
    return Constraint(f"{name}_p99", needed * 1e3, limit * 1e3, "ms", text), ratio


def _memory_constraint(question: Question, memory: MemoryFit) -> Constraint:
    used = memory.weights_bytes + memory.reserve_bytes
    needed = used + question.workload.longest_tokens * memory.kv_bytes_per_token
    text = (
        f"memory: weights {memory.weights_bytes / 1e9:.1f} GB, reserve "
        f"{memory.reserve_bytes / 1e9:.1f} GB and KV of one request need {needed / 1e9:.1f} GB of "
        f"{memory.capacity_bytes / 1e9:.0f} GB a device"
    )
    return Constraint("memory", needed / 1e9, memory.capacity_bytes / 1e9, "GB", text)


def _silicon_constraint(
    question: Question, cost: StepCost, alone: Latencies, name: str
) -> Constraint:
    limit, needed = getattr(question.targets, f"{name}_s"), getattr(alone, f"{name}_s")
    needed *= 1 + question.caution.margin
    context = round(question.workload.mean_context)
    tokens = (1, 0, context, context)
    if name == "ttft":
        prompt = question.workload.prompt_tokens
        tokens = (0, prompt, prompt, prompt * (prompt + 1) // 2)
    parts = cost.breakdown_of(*tokens)
    text = (
        f"{_LABELS[name]} {_ms(limit)}: a request alone takes {_ms(needed)} with "
        f"{question.caution.margin:.0%} margin, most of a step in {parts.largest}"
    )
    return Constraint(f"{name}_p99", needed * 1e3, limit * 1e3, "ms", text)


def _capacity_constraint(question: Question, base: Assessment) -> Constraint:
    per_replica = question.workload.requests_per_s / base.topology.dp
    text = (
        f"load: {per_replica:.3g} requests/s a replica outgrow steps, seats or "
        f"{base.memory.num_kv_tokens:,} tokens of KV"
    )
    return Constraint("load", per_replica, 0.0, "requests/s", text)


def _target_constraint(targets: Targets, name: str, predicted: Latencies, how: str) -> Constraint:
    limit, needed = getattr(targets, f"{name}_s"), getattr(predicted, f"{name}_s")
    text = f"{_LABELS[name]} {_ms(limit)}: {how} at {_ms(needed)} under this load"
    return Constraint(f"{name}_p99", needed * 1e3, limit * 1e3, "ms", text)


def _ms(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "without bound"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
