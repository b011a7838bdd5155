"""One verification: the service is started or given, learned from, loaded, and compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from takt.errors import ConfigError
from takt.observe.step_log import LoggedStep
from takt.plan.load_estimate import StepLimits
from takt.plan.simulate.arrivals import poisson_arrivals
from takt.plan.workload import Targets, Workload
from takt.verify.calibration import Calibration, Limits, calibrate, fit_load
from takt.verify.comparison import Comparison, compare
from takt.verify.measurement import Measurement, OnProgress, Target, of_requests, offer
from takt.verify.outside import left_out
from takt.verify.planned import Planned
from takt.verify.prediction import Prediction, from_plan, from_steps
from takt.verify.service import Service, ServiceError, started

OF_LOAD = "of the load itself, each stretch judged by the others"


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
    by_load: bool = False
    """Compare with steps of the load itself, one half of which is judged by the other."""
    calibrates_again: bool = False
    """After the load: what the machine's speed did meanwhile is seen by both."""
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
        if self.by_plan and self.by_load:
            raise ConfigError("give either the plan or the load's own steps to compare with")
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
        if service is None or request.by_plan:
            measurement = _offer(request, target, request.workload.requests_per_s, on_progress)
            prediction = _by_plan(request, measurement)
            return compare(prediction, measurement, request.targets, tolerance=request.tolerance)
        calibration = _calibrate(request, service, target, on_progress, "calibration")
        rate = request.workload.requests_per_s
        if request.load is not None:
            rate = request.load * calibration.capacity_per_s(*_lengths(request))
        num_before = len(service.steps())
        measurement = _offer(request, target, rate, on_progress)
        steps = service.steps()[num_before:]
        again = None
        if request.calibrates_again:
            again = _calibrate(request, service, target, on_progress, "calibration afterwards")
    return _by_steps(request, measurement, calibration, steps, again)


def _by_steps(
    request: Request,
    measurement: Measurement,
    calibration: Calibration,
    steps: Sequence[LoggedStep],
    again: Calibration | None,
) -> Comparison:
    """Every simulation of the load that its steps allow; one of them judges."""
    arrivals, seed = measurement.arrivals, request.seed
    judge = from_steps(calibration, arrivals, source="measured before the load", seed=seed)
    beside = []
    if again is not None:
        beside.append(from_steps(again, arrivals, source="measured after the load", seed=seed))
    load = fit_load(calibration, steps, measurement.start_ns)
    if load is not None:
        learned = from_steps(load.calibration, arrivals, source=OF_LOAD, seed=seed)
        if request.by_load:
            learned, judge = judge, learned
        beside.append(learned)
    elif request.by_load:
        raise ServiceError(f"the load made too few steps to learn from: {len(steps)}")
    return compare(
        judge,
        measurement,
        request.targets,
        tolerance=request.tolerance,
        beside=beside,
        left_out=None if load is None else left_out(steps, measurement, load),
    )


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
    request: Request, service: Service, target: Target, on_progress: OnProgress, name: str
) -> Calibration:
    limits = Limits(request.limits.max_num_seqs, request.limits.max_num_batched_tokens)
    return calibrate(
        service,
        target,
        _lengths(request),
        limits,
        on_progress,
        name=name,
        seed=request.seed + 1,
        rounds=request.calibration_rounds,
    )


def _by_plan(request: Request, measurement: Measurement) -> Prediction:
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


def _offer(
    request: Request, target: Target, rate_per_s: float, on_progress: OnProgress
) -> Measurement:
    """What it will take is told with its progress."""
    workload = request.workload
    arrivals = poisson_arrivals(
        rate_per_s, request.num_requests, workload.prompt, workload.output, request.seed
    )
    minutes = arrivals[-1].time_ns / 60e9
    name = f"load of {minutes:.1f} min at {rate_per_s:.3g}/s"
    on_progress(name, 0, len(arrivals))
    return offer(target, arrivals, of_requests(name, on_progress), seed=request.seed)


def _lengths(request: Request) -> tuple[int, int]:
    return request.workload.prompt_tokens, request.workload.output_tokens
