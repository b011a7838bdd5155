"""Learns a running service's step times from its own steps, and what is added outside of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from takt.config import CacheOptions
from takt.observe.step_log import LoggedStep
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.step_time import StepFeatures, StepTimeModel
from takt.types.step_ids import replica_of
from takt.verify.measurement import Measurement, OnProgress, Target, keep_busy
from takt.verify.service import Service, ServiceError

CONCURRENCIES = (1, 4, 16)
MOST_CONCURRENT = 48
"""Closed loops between which the batches of a load lie; the last has as many as may run."""

MAX_SAMPLES = 1500
"""Of the fit, evenly among the steps: it is in plain Python."""

_LEAST_STEPS = 20
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
    """Its duration is a fitted `StepTimeModel`."""
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
    seed: int,
    rounds: float = 1.0,
) -> Calibration:
    """Keeps the service busy with few and with many streams. `rounds` scales their requests."""
    alone: Measurement | None = None
    most = min(MOST_CONCURRENT, limits.max_num_seqs)
    for concurrency in (*(c for c in CONCURRENCIES if c < most), most):
        count = max(2, round(rounds * max(8, 2 * concurrency)))
        found = keep_busy(target, concurrency, count, lengths, on_progress, seed=seed + concurrency)
        alone = alone or found
    assert alone is not None
    return fit(service.steps(), limits, alone)


def _named(name: str, on_progress: OnProgress) -> OnProgress:
    """Each load of the calibration has a bar of its own, and none for its prompts."""

    def report(stage: str, done: int, total: int) -> None:
        if stage == "requests":
            on_progress(name, done, total)

    return report


def fit(steps: Sequence[LoggedStep], limits: Limits, alone: Measurement) -> Calibration:
    """From logged steps, and a measurement of requests that were served one at a time."""
    if not steps:
        raise ServiceError("the service logged no step")
    samples = step_periods(steps)
    # Blocks of several groups hold the same tokens: the simulator's pool has one group.
    server = SimulatedServer(
        duration=_model_of(samples),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_kv_tokens=steps[-1].kv_blocks_total * CacheOptions().block_size,
    )
    simulated = simulate(server, alone.arrivals, warm_up_share=0.1)
    outside_s = alone.median_ttft_ms / 1e3 - simulated.ttft_quantile_s(0.5)
    return Calibration(server, max(0.0, outside_s), len(samples))


def fit_again(
    calibration: Calibration, steps: Sequence[LoggedStep]
) -> tuple[Calibration, float] | None:
    """The same service with the times of later steps, and how many times as long these took as was
    predicted for them, the median; None if too few were logged."""
    samples = step_periods(steps)
    earlier = calibration.server.duration
    if len(samples) < _LEAST_STEPS or not isinstance(earlier, StepTimeModel):
        return None
    ratios = [duration_ns / earlier.predict_ns(features) for features, duration_ns in samples]
    server = replace(calibration.server, duration=_model_of(samples))
    return Calibration(server, calibration.outside_s, len(samples)), statistics.median(ratios)


def _model_of(samples: Sequence[tuple[StepFeatures, float]]) -> StepTimeModel:
    return StepTimeModel.fit(samples[:: -(-len(samples) // MAX_SAMPLES)])


def step_periods(steps: Sequence[LoggedStep]) -> list[tuple[StepFeatures, float]]:
    """Features of each step, and nanoseconds that it kept the engine from the next one.

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
            samples.append((features, float(step.update_end_ns - begin_ns)))
    return samples
