"""Calibrations that were made before, by model, machine, threads and types."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import takt
from takt.config import EngineConfig, cache_home
from takt.engine.calibrate import Calibration
from takt.scheduler.step_time import StepCoefficients, StepTimeModel

_FORMAT = 1


def calibration_path(config: EngineConfig, num_threads: int) -> Path:
    """The file of a calibration that holds for this configuration on this machine."""
    model = Path(config.model.model)
    state: list[Any] = [str(model)]
    with contextlib.suppress(OSError):
        found = model.stat()
        state = [str(model.resolve()), found.st_size, found.st_mtime_ns]
    key = {
        "format": _FORMAT,
        "version": takt.__version__,
        "model": state,
        "machine": [platform.node(), platform.machine(), _processor(), os.cpu_count()],
        "threads": num_threads,
        "dtype": [config.model.dtype, config.model.quantization],
        "ranks": [config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size],
        "backend": [config.model.backend, config.model.enforce_eager],
        "kv": [config.cache.kv_cache_dtype, config.cache.block_size],
        "steps": [
            config.model.max_model_len,
            config.scheduler.max_num_seqs,
            config.scheduler.max_num_batched_tokens,
        ],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_home() / "calibration" / f"{digest}.json"


def read_calibration(path: Path) -> Calibration | None:
    """None if there is none or it cannot be read: it is measured again then."""
    try:
        plain = json.loads(path.read_text())
        first, second = (StepCoefficients(*map(float, piece)) for piece in plain["pieces"])
        ratios = tuple(float(ratio) for ratio in plain["residual_ratios"])
        floor_ns, seconds = int(plain["floor_ns"]), float(plain["seconds"])
        num_steps = int(plain["num_steps"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    numbers = (*first, *second, *ratios, floor_ns)
    if not ratios or floor_ns < 1 or not all(math.isfinite(n) and n >= 0 for n in numbers):
        return None
    return Calibration(StepTimeModel((first, second), ratios), floor_ns, num_steps, seconds)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Replaces the file as a whole; where it cannot be written, the next start measures again."""
    plain = {
        "pieces": [list(piece) for piece in calibration.model.pieces],
        "residual_ratios": list(calibration.model.residual_ratios),
        "floor_ns": calibration.floor_ns,
        "num_steps": calibration.num_steps,
        "seconds": calibration.seconds,
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(json.dumps(plain))
        new.replace(path)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
