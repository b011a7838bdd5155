"""Learns a running service's step times from its own steps, and what is added outside of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from takt.config import CacheOptions
from takt.observe.step_log import LoggedStep
from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.measured_steps import MeasuredSteps
from takt.plan.simulate.recorded_load import RecordedStep, fit_thinned, learn
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.step_time import StepFeatures
from takt.types.step_ids import replica_of
from takt.verify.measurement import Measurement, OnProgress, Target, keep_busy, of_requests
from takt.verify.service import Service, ServiceError

CONCURRENCIES = (1, 4, 16)
MOST_CONCURRENT = 48
"""Closed loops between which the batches of a load lie; the last has as many as may run."""

_SATURATING_REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Limits:
    """The service's `--max-num-seqs` and `--max-num-batched-tokens`."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """A simulated double of the service."""

    server: SimulatedServer
    """Its duration is `MeasuredSteps`."""
    outside_s: float
    """Time of a request's first token that no step accounts for: HTTP, tokenising, the client."""
    num_steps: int

    def capacity_per_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Requests per second that it serves while more are always waiting."""
        many = [Arrival(i, prompt_tokens, output_tokens) for i in range(_SATURATING_REQUESTS)]
        result = simulate(self.server, many, warm_up_share=0.0)
        return _SATURATING_REQUESTS / float(result.e2e_s.max())


def calibrate(
    service: Service,
    target: Target,
    lengths: tuple[int, int],
    limits: Limits,
    on_progress: OnProgress,
    *,
    name: str,
    seed: int,
    rounds: float = 1.0,
) -> Calibration:
    """Keeps the service busy with few and with many streams. `rounds` scales their requests."""
    alone: Measurement | None = None
    num_before = len(service.steps())
    most = min(MOST_CONCURRENT, limits.max_num_seqs)
    for concurrency in (*(c for c in CONCURRENCIES if c < most), most):
        count = max(2, round(rounds * max(8, 2 * concurrency)))
        named = of_requests(f"{name}, {concurrency} at a time", on_progress)
        found = keep_busy(target, concurrency, count, lengths, named, seed=seed + concurrency)
        alone = alone or found
    assert alone is not None
    return fit(service.steps()[num_before:], limits, alone)


def fit(steps: Sequence[LoggedStep], limits: Limits, alone: Measurement) -> Calibration:
    """From logged steps, and a measurement of requests that were served one at a time."""
    if not steps:
        raise ServiceError("the service logged no step")
    samples = [(features, duration_ns) for _, features, duration_ns in step_periods(steps)]
    # Blocks of several groups hold the same tokens: the simulator's pool has one group.
    server = SimulatedServer(
        duration=MeasuredSteps.of(fit_thinned(samples), samples),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_kv_tokens=steps[-1].kv_blocks_total * CacheOptions().block_size,
    )
    simulated = simulate(server, alone.arrivals, warm_up_share=0.1)
    outside_s = alone.median_ttft_ms / 1e3 - simulated.ttft_quantile_s(0.5)
    return Calibration(server, max(0.0, outside_s), len(samples))


@dataclass(frozen=True, slots=True)
class LoadCalibration:
    """The same service as its steps were while the load was on."""

    calibration: Calibration
    """Its server's speed follows the machine's."""
    slowdown: float
    """How many times as long all steps took as the earlier calibration has it."""
    slowdown_range: tuple[float, float]
    """The same over time: its 5 and 95 %."""
    autocorrelation: float
    """Of a step's residual with the next one's."""


def fit_load(
    earlier: Calibration, steps: Sequence[LoggedStep], start_ns: int
) -> LoadCalibration | None:
    """From the steps of a load that began at `start_ns`; None if they are too few."""
    periods = [period for period in step_periods(steps) if period[0] > start_ns]
    try:
        found = learn([RecordedStep(end - start_ns, what, took) for end, what, took in periods])
    except PlanInputError:
        return None
    predict_ns = earlier.server.duration.predict_ns
    expected_ns = sum(predict_ns(features) for _, features, _ in periods)
    slowdown = sum(duration_ns for _, _, duration_ns in periods) / expected_ns
    low, high = np.quantile(found.speed.factors, (0.05, 0.95)) / np.mean(found.speed.factors)
    server = replace(earlier.server, duration=found.steps, speed=found.speed)
    return LoadCalibration(
        replace(earlier, server=server, num_steps=len(periods)),
        slowdown,
        (slowdown * float(low), slowdown * float(high)),
        found.autocorrelation,
    )


def step_periods(steps: Sequence[LoggedStep]) -> list[tuple[int, StepFeatures, float]]:
    """End and features of each step, and nanoseconds that it kept the engine from the next one.

    While there is work, from the end of the step before: a gap between two tokens spans also what
    the engine does between steps. After idleness, from its own begin.
    """
    samples = []
    last: dict[int, LoggedStep] = {}
    for step in steps:
        begin_ns = step.schedule_start_ns
        replica = replica_of(step.step_id)
        before = last.get(replica)
        if before is not None and before.num_running + before.num_waiting > 0:
            begin_ns = before.update_end_ns
        last[replica] = step
        features = StepFeatures(
            step.num_decode_seqs,
            step.num_prefill_tokens,
            step.num_kv_tokens_read,
            step.num_qk_pairs,
        )
        if step.update_end_ns > begin_ns:
            duration_ns = float(step.update_end_ns - begin_ns)
            samples.append((step.update_end_ns, features, duration_ns))
    return samples
