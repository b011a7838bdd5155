"""The engine's step-time model: calibrated or read from the cache, and checked against targets."""

from __future__ import annotations

import logging

from takt.clock import Clock
from takt.config import EngineConfig, SchedulerOptions
from takt.engine.calibrate import Calibration, calibrate
from takt.engine.calibration_file import calibration_path, read_calibration, write_calibration
from takt.engine.dummy_steps import DummySteps
from takt.engine.executor import Executor
from takt.engine.sizing import EngineSizes
from takt.errors import ConfigError
from takt.scheduler.calibration_steps import calibration_steps
from takt.scheduler.create import step_limits

_log = logging.getLogger(__name__)


def calibrated(
    config: EngineConfig, executor: Executor, sizes: EngineSizes, num_threads: int, clock: Clock
) -> Calibration:
    """What is known of steps before the first request; raises `ConfigError` for a target that
    even a single step exceeds, unless `slo_force` is set."""
    path = calibration_path(config, num_threads)
    calibration = None if config.scheduler.calibrate else read_calibration(path)
    # Nobody is refused for what the machine did at an earlier start.
    is_doubtful = calibration is not None and _too_small(config.scheduler, calibration.floor_ns)
    if calibration is None or (is_doubtful and not config.scheduler.slo_force):
        shapes = calibration_steps(step_limits(config.scheduler, sizes.max_model_len))
        calibration = calibrate(shapes, DummySteps(executor, sizes, clock).run_ns, clock)
        if calibration.is_steady:
            write_calibration(path, calibration)
        else:
            _log.warning(
                "steps took very unequal times while they were calibrated: the machine was busy. "
                "The result serves this start alone; the next one measures again"
            )
    _check_floor(config.scheduler, calibration.floor_ns)
    return calibration


def _too_small(options: SchedulerOptions, floor_ns: int) -> list[tuple[str, float]]:
    """Flags, with their targets in ms, of what even the shortest step exceeds."""
    targets = (
        ("--slo-itl-p99-ms", options.slo_itl_p99_ms),
        ("--slo-ttft-p99-ms", options.slo_ttft_p99_ms),
    )
    return [(flag, ms) for flag, ms in targets if ms is not None and ms < floor_ns / 1e6]


def _check_floor(options: SchedulerOptions, floor_ns: int) -> None:
    for flag, target_ms in _too_small(options, floor_ns):
        reason = (
            f"{flag} {target_ms:g} cannot be held: a step of a single sequence, the shortest there "
            f"is, takes {floor_ns / 1e6:.2f} ms or more (P99) with this model on this machine"
        )
        if not options.slo_force:
            raise ConfigError(
                f"{reason}; ask for more than that, take a smaller model or more threads, or "
                "start all the same with --slo-force"
            )
        _log.warning("%s; the engine starts all the same", reason)
