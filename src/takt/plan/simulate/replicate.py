"""Independent repetitions of a simulation, over processes, and intervals of what they found."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

import numpy as np

from takt.plan.errors import PlanInputError, require_whole
from takt.plan.simulate.arrivals import Arrival, LengthDistribution, poisson_arrivals
from takt.plan.simulate.durations import NoisyDuration, StepDuration
from takt.plan.simulate.measured_steps import MeasuredHalves, MeasuredSteps
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.simulator import SimulatedServer, simulate

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL95 = 1.960

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class PoissonLoad:
    """Arrivals that each replication draws anew."""

    rate_per_s: float
    num_requests: int
    prompt: LengthDistribution
    output: LengthDistribution


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """Recorded arrivals, the same in each replication: only the steps' noise differs."""

    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    server: SimulatedServer
    load: PoissonLoad | TraceLoad
    noise: float | None = 0.0
    """Coefficient of variation of steps; None draws the residuals of `MeasuredSteps`."""
    bias: float = 1.0
    seed: int = 0
    warm_up_share: float = 0.1

    def __post_init__(self) -> None:
        """Raises `PlanInputError`."""
        require_whole("the seed", self.seed, 0)


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean over replications and its 95 % confidence interval by Student's t.

    Without bounds (NaN) for one replication.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        count = len(values)
        mean = sum(values) / count
        if count == 1:
            return cls(mean, math.nan, math.nan)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1))
        quantile = _T95[count - 2] if count - 1 <= len(_T95) else _NORMAL95
        half = quantile * deviation / math.sqrt(count)
        return cls(mean, mean - half, mean + half)


Metrics = dict[str, float]
"""By name, such as `itl_p99_ms`; times in milliseconds."""


def run_replication(experiment: Experiment, index: int) -> Metrics:
    """One repetition; equal for equal seeds and indices."""
    # Streams of different replications and of arrivals and noise must not meet.
    arrivals_seed, noise_seed = np.random.SeedSequence((experiment.seed, index)).generate_state(2)
    load = experiment.load
    if isinstance(load, TraceLoad):
        arrivals: Sequence[Arrival] = load.arrivals
    else:
        arrivals = poisson_arrivals(
            load.rate_per_s, load.num_requests, load.prompt, load.output, int(arrivals_seed)
        )
    duration = _duration(experiment, int(noise_seed))
    server = replace(experiment.server, duration=duration)
    return _metrics(simulate(server, arrivals, warm_up_share=experiment.warm_up_share))


def run_replications(
    experiment: Experiment,
    count: int,
    *,
    num_processes: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Interval]:
    """Intervals over `count` repetitions; `on_progress` gets those done and their number."""
    require_whole("the number of replications", count)
    if num_processes is not None:
        require_whole("the number of processes", num_processes)
    workers = min(count, num_processes or len(os.sched_getaffinity(0)))
    results: list[Metrics | None] = [None] * count
    done = 0
    if workers == 1:
        for index in range(count):
            results[index] = run_replication(experiment, index)
            if on_progress is not None:
                on_progress(index + 1, count)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures = {pool.submit(run_replication, experiment, i): i for i in range(count)}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                done += 1
                if on_progress is not None:
                    on_progress(done, count)
    found = [metrics for metrics in results if metrics is not None]
    return {name: Interval.of([m[name] for m in found]) for name in found[0]}


def _duration(experiment: Experiment, seed: int) -> StepDuration:
    base = experiment.server.duration
    if experiment.noise is not None:
        return NoisyDuration(base, noise=experiment.noise, bias=experiment.bias, seed=seed)
    if not isinstance(base, MeasuredSteps | MeasuredHalves):
        raise PlanInputError("only measured steps have residuals to draw")
    return NoisyDuration(base.drawn(seed), bias=experiment.bias)


def _metrics(result: SimulationResult) -> Metrics:
    metrics: Metrics = {}
    for label, quantile in _QUANTILES.items():
        metrics[f"ttft_{label}_ms"] = result.ttft_quantile_s(quantile) * 1e3
        metrics[f"itl_{label}_ms"] = result.itl_quantile_s(quantile) * 1e3
        metrics[f"e2e_{label}_ms"] = result.e2e_quantile_s(quantile) * 1e3
    metrics["requests_per_s"] = result.requests_per_s
    metrics["mean_running"] = result.mean_running
    metrics["busy_share"] = result.busy_share
    metrics["peak_kv_share"] = result.peak_kv_share
    metrics["refused_share"] = result.num_refused / max(result.num_refused + result.num_requests, 1)
    metrics["met_share"] = result.num_met / max(result.num_requests, 1)
    metrics["num_preemptions"] = float(result.num_preemptions)
    return metrics
