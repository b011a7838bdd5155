"""Calibrations that were made before, by model, machine, threads and types."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import msgspec

import takt
from takt.config import EngineConfig, cache_home
from takt.engine.calibrate import Calibration
from takt.engine.precision import resolve_kv_dtype, with_activations
from takt.parallel.cpu_name import cpu_name
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

_FORMAT = 3

_MAX_NS = 1e12
"""No step takes a quarter of an hour: a file that says so was not written here."""
_MAX_RATIO = 1000.0

_Nanoseconds = Annotated[float, msgspec.Meta(ge=0, le=_MAX_NS)]
_Piece = tuple[_Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds]
_Ratio = Annotated[float, msgspec.Meta(gt=0, le=_MAX_RATIO)]


class _Kept(msgspec.Struct):
    """What a file holds; whoever may write to the cache may have written anything."""

    pieces: tuple[_Piece, _Piece]
    residual_ratios: Annotated[list[_Ratio], msgspec.Meta(min_length=1)]
    floor_ns: Annotated[int, msgspec.Meta(ge=1, le=int(_MAX_NS))]
    num_steps: Annotated[int, msgspec.Meta(ge=1)]
    seconds: Annotated[float, msgspec.Meta(ge=0)]


def calibration_path(config: EngineConfig, num_threads: int) -> Path:
    """The file of a calibration that holds for this configuration on this machine."""
    key = {
        **model_and_machine(config),
        "format": _FORMAT,
        "threads": num_threads,
        "ranks": [
            config.parallel.tensor_parallel_size,
            config.parallel.pipeline_parallel_size,
            config.parallel.all_reduce_dtype,
        ],
        "backend": [config.model.backend, config.model.enforce_eager],
        "kv_block_size": config.cache.block_size,
        "steps": [
            config.model.max_model_len,
            config.scheduler.max_num_seqs,
            config.scheduler.max_num_batched_tokens,
        ],
    }
    return kept_path("calibration", key)


def model_and_machine(config: EngineConfig) -> dict[str, Any]:
    """What any time depends on: the model's file, the types it computes in, the machine."""
    model = Path(config.model.model)
    state: list[Any] = [str(model)]
    with contextlib.suppress(OSError):
        found = model.stat()
        state = [str(model.resolve()), found.st_size, found.st_mtime_ns]
    return {
        "version": takt.__version__,
        "model": state,
        "machine": [platform.node(), platform.machine(), cpu_name(), os.cpu_count()],
        "dtype": [
            config.model.dtype,
            config.model.quantization,
            with_activations(config).model.prefill_activation_dtype,
            config.model.decode_activation_dtype,
            resolve_kv_dtype(config).label,
        ],
    }


def kept_path(folder: str, key: dict[str, Any]) -> Path:
    """The file in the cache of what was measured under `key`."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_home() / folder / f"{digest}.json"


def read_calibration(path: Path) -> Calibration | None:
    """None if there is none or it cannot be one: it is measured again then."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    first, second = (StepCoefficients(*piece) for piece in kept.pieces)
    model = StepTimeModel((first, second), tuple(sorted(kept.residual_ratios)))
    if not _is_plausible(model):
        return None
    return Calibration(model, kept.floor_ns, kept.num_steps, kept.seconds)


def _is_plausible(model: StepTimeModel) -> bool:
    """Whether steps take time, and one of some size no longer than the largest there may be."""
    least_ns = model.predict_ns(StepFeatures(1, 0, 1, 1))
    some_ns = model.predict_ns(StepFeatures(16, 64, 8192, 16384))
    return least_ns >= 1.0 and some_ns <= _MAX_NS


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Replaces the file as a whole; where it cannot be written, the next start measures again."""
    plain = {
        "pieces": [list(piece) for piece in calibration.model.pieces],
        "residual_ratios": list(calibration.model.residual_ratios),
        "floor_ns": calibration.floor_ns,
        "num_steps": calibration.num_steps,
        "seconds": calibration.seconds,
    }
    keep(path, plain)


def keep(path: Path, plain: dict[str, Any]) -> None:
    """Replaces a file of the cache as a whole, where it can be written."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(json.dumps(plain))
        new.replace(path)
