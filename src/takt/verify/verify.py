"""One verification: the service is started or given, learned from, loaded, and compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from takt.errors import ConfigError
from takt.observe.step_log import LoggedStep
from takt.plan.load_estimate import StepLimits
from takt.plan.simulate.arrivals import Arrival, poisson_arrivals
from takt.plan.workload import Targets, Workload
from takt.verify.calibration import Calibration, Limits, calibrate, fit_again
from takt.verify.comparison import Comparison, compare
from takt.verify.measurement import Measurement, OnProgress, Target, offer
from takt.verify.planned import Planned
from takt.verify.prediction import Prediction, Replay, from_plan, from_steps
from takt.verify.service import Service, started


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is verified. Either `url` or `serve_arguments` is given, and a plan with a URL."""

    workload: Workload
    targets: Targets | None
    limits: StepLimits
    planned: Planned | None = None
    hardware_file: Path | None = None
    url: str | None = None
    serve_arguments: tuple[str, ...] = ()
    by_plan: bool = False
    """Compare with the plan's device model, not with steps that are measured first."""
    load: float | None = None
    """Share of the measured capacity to offer, in place of the workload's rate."""
    num_requests: int = 1000
    tolerance: float = 0.10
    model_name: str | None = None
    endpoint: str = "completions"
    api_key: str | None = None
    seed: int = 0
    calibration_rounds: float = 1.0

    def __post_init__(self) -> None:
        if (self.url is None) == (not self.serve_arguments):
            raise ConfigError("give either a service to start or its --url")
        if self.by_plan and self.planned is None:
            raise ConfigError("a comparison with a plan needs --plan, or --hardware to make one")
        if self.url is not None and not self.by_plan:
            raise ConfigError(
                "the steps of a service at --url are not known: give --plan, or --hardware"
            )
        if self.load is not None and not 0 < self.load < 1:
            raise ConfigError(f"--load is a share of the capacity within 0 and 1, got {self.load}")
        if self.load is not None and self.by_plan:
            raise ConfigError("--load is a share of a measured capacity: a plan has its own --qps")
        if self.num_requests < 20:
            raise ConfigError(f"--num-requests must be at least 20, got {self.num_requests}")
        if not 0 < self.tolerance < 1:
            raise ConfigError(f"--tolerance must lie within 0 and 1, got {self.tolerance}")


def verify(request: Request, on_progress: OnProgress) -> Comparison:
    """Raises `ConfigError` for what cannot be, and `TaktError` if the service does not serve."""
    with _service(request) as (service, target):
        calibration = None
        rate = request.workload.requests_per_s
        if not request.by_plan:
            assert service is not None
            calibration = _calibrate(request, service, target, on_progress)
            if request.load is not None:
                rate = request.load * calibration.capacity_per_s(*_lengths(request))
        num_before = 0 if service is None else len(service.steps())
        measurement = offer(target, _arrivals(request, rate), on_progress, seed=request.seed)
        steps = [] if service is None else service.steps()[num_before:]
    prediction = _predict(request, calibration, measurement)
    replay = None
    if calibration is not None:
        replay = _replay(calibration, steps, measurement, request.seed)
    return compare(
        prediction, measurement, request.targets, tolerance=request.tolerance, replay=replay
    )


def _replay(
    calibration: Calibration, steps: Sequence[LoggedStep], measurement: Measurement, seed: int
) -> Replay | None:
    found = fit_again(calibration, steps)
    if found is None:
        return None
    again, slowdown = found
    return Replay(from_steps(again, measurement.arrivals, seed=seed).bands, slowdown)


@contextlib.contextmanager
def _service(request: Request) -> Iterator[tuple[Service | None, Target]]:
    def target(url: str) -> Target:
        return Target(url, request.model_name, request.endpoint, request.api_key)

    if request.url is not None:
        yield None, target(request.url)
        return
    with started(request.serve_arguments) as service:
        yield service, target(service.url)


def _calibrate(
    request: Request, service: Service, target: Target, on_progress: OnProgress
) -> Calibration:
    limits = Limits(request.limits.max_num_seqs, request.limits.max_num_batched_tokens)
    return calibrate(
        service,
        target,
        _lengths(request),
        limits,
        on_progress,
        seed=request.seed + 1,
        rounds=request.calibration_rounds,
    )


def _predict(
    request: Request, calibration: Calibration | None, measurement: Measurement
) -> Prediction:
    if calibration is not None:
        return from_steps(calibration, measurement.arrivals, seed=request.seed)
    planned = request.planned
    assert planned is not None
    return from_plan(
        planned.simulated_replica(request.hardware_file),
        measurement.arrivals,
        num_replicas=planned.num_replicas,
        bias=planned.caution.bias,
        noise=planned.caution.noise,
        seed=request.seed,
    )


def _arrivals(request: Request, rate_per_s: float) -> Sequence[Arrival]:
    workload = request.workload
    return poisson_arrivals(
        rate_per_s, request.num_requests, workload.prompt, workload.output, request.seed
    )


def _lengths(request: Request) -> tuple[int, int]:
    return request.workload.prompt_tokens, request.workload.output_tokens
