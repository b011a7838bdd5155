"""Random cases for the planner, judged by simulations whose steps are not the planner's own.

A HOLD is false if the planned topology, with steps off by up to 5 % either way and 5 % noise,
misses a target. A case that such a simulation serves with 15 % to spare should get a HOLD.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from takt.plan.assess import Caution, Question, assess, simulated_p99
from takt.plan.hardware import Cluster, known_accelerators
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.search import PlanRequest, make_plan
from takt.plan.topology import topologies
from takt.plan.verdict import Verdict
from takt.plan.workload import Targets, Workload

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "llama-3-8b", "qwen3-14b", "llama-3-70b")
DEVICES = ("A100-80G", "H100", "H200", "L40S", "B200")
TRUTH_BIAS = (0.95, 1.05)
TRUTH_NOISE = 0.05
TRUTH_REQUESTS = 3000
SPARE = 1.15


@dataclass(frozen=True, slots=True)
class Outcome:
    label: str
    verdict: str
    truth_ratio: float
    """Worst latency over target in the simulated truth; inf where nothing was worth simulating."""

    @property
    def is_false_hold(self) -> bool:
        return self.verdict == Verdict.HOLD.value and self.truth_ratio > 1

    @property
    def should_hold(self) -> bool:
        return self.truth_ratio * SPARE <= 1


def random_request(seed: int) -> PlanRequest:
    """Targets near what some topology can do, so that many cases are close calls."""
    rng = random.Random(seed)
    precision = parse_precision("bf16")
    while True:
        model = find_model(rng.choice(MODELS))
        accelerator = known_accelerators()[rng.choice(DEVICES)]
        cluster = Cluster(accelerator, rng.choice((1, 2, 4, 8)))
        workload = Workload(
            prompt_tokens=rng.choice((64, 128, 256, 512, 1024)),
            output_tokens=rng.choice((16, 32, 64, 128)),
            requests_per_s=1.0,
            prompt_variation=rng.choice((0.0, 0.0, 0.6)),
            output_variation=rng.choice((0.0, 0.0, 0.6)),
        )
        loose = Question(model, accelerator, workload, Targets(1e3, 1e3, 1e3), Caution())
        scale = _near_capacity(loose, cluster, rng)
        if scale is not None:
            break
    rate, reference = scale
    factors = [rng.uniform(0.85, 1.9) for _ in range(3)]
    itl, ttft, e2e = (f * v for f, v in zip(factors, reference, strict=True))
    targets = Targets(itl, ttft if rng.random() < 0.8 else None, None)
    if rng.random() < 0.4:
        targets = replace(targets, e2e_s=max(e2e, targets.ttft_s or 0.0))
    return PlanRequest(model, cluster, precision, replace(workload, requests_per_s=rate), targets)


def run_case(seed: int) -> Outcome:
    request = random_request(seed)
    plan = make_plan(request)
    best = plan.best
    label = (
        f"{seed}: {request.model.name} on {request.cluster.label}, {best.topology.label}, "
        f"{request.workload.requests_per_s:.3g}/s"
    )
    if best.limits is None or best.verdict.rank < Verdict.LOAD_NO.rank:
        return Outcome(label, best.verdict.value, float("inf"))
    rng = random.Random(seed + 1_000_003)
    truth = Caution(
        bias=rng.uniform(*TRUTH_BIAS),
        noise=TRUTH_NOISE,
        num_requests=TRUTH_REQUESTS,
        seed=seed + 7_000_001,
    )
    question = Question(
        request.model, request.cluster.accelerator, request.workload, request.targets, truth
    )
    latencies = simulated_p99(question, best.topology, request.precision, best)
    name, ratio = latencies.worst(request.targets)
    return Outcome(f"{label}, {name} {ratio:.3f}", best.verdict.value, ratio)


def _near_capacity(
    question: Question, cluster: Cluster, rng: random.Random
) -> tuple[float, tuple[float, float, float]] | None:
    """A rate that some topology takes, and its estimated P99s there."""
    divisions = topologies(question.model, cluster)
    topology = rng.choice(divisions)
    rate, held = 0.01, None
    while True:
        workload = replace(question.workload, requests_per_s=rate)
        answer = assess(replace(question, workload=workload), topology, parse_precision("bf16"))
        if answer.verdict is not Verdict.CANDIDATE or rate > 1e4:
            break
        held, rate = rate, rate * 1.5
    if held is None:
        return None
    rate = held * rng.uniform(0.2, 0.95)
    workload = replace(question.workload, requests_per_s=rate)
    answer = assess(replace(question, workload=workload), topology, parse_precision("bf16"))
    if answer.predicted is None or answer.load is None or answer.load.batch is None:
        return None
    predicted = answer.predicted
    return rate, (max(predicted.itl_s, 1e-4), predicted.ttft_s, predicted.e2e_s)
