"""What tensor-parallel ranks exchange in an all-reduce: as asked, or whatever is fastest here."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from takt.config import EngineConfig
from takt.errors import ConfigError
from takt.ops.native.all_reduce_times import all_reduce_seconds
from takt.parallel.compression import FORMAT_OF_DTYPE, INT8_GROUP, ReduceFormat, fastest_of_all
from takt.parallel.pinning import RankCpus

_log = logging.getLogger(__name__)

PLAIN = "float32"


def resolve_all_reduce_dtype(
    config: EngineConfig, hidden_size: int, ranks: Sequence[RankCpus] | None
) -> str:
    """A key of `FORMAT_OF_DTYPE`, one for all steps; `auto` measures it on the CPUs of `ranks`.

    Ranks that are not pinned take turns or move: there is nothing to measure, and each wait that a
    second step adds is long, so `auto` is float32. Raises `ConfigError` for a compressed type whose
    groups do not fit the hidden size.
    """
    asked, tensor_size = config.parallel.all_reduce_dtype, config.parallel.tensor_parallel_size
    fits = hidden_size % INT8_GROUP == 0
    if asked not in ("auto", PLAIN) and not fits:
        raise ConfigError(
            f"--all-reduce-dtype {asked} needs a hidden size that is a multiple of {INT8_GROUP}, "
            f"and this model's is {hidden_size}: use {PLAIN}"
        )
    if asked != "auto":
        return asked
    if tensor_size == 1 or ranks is None or not fits:
        return PLAIN
    return _fastest(config, hidden_size, [rank.cpus[0] for rank in ranks[:tensor_size]])


def _fastest(config: EngineConfig, hidden_size: int, cpus: Sequence[int]) -> str:
    # Costs are a constant and a share of the size: what wins at both ends wins between them.
    num_tokens = (1, config.scheduler.max_num_batched_tokens)
    seconds = all_reduce_seconds(cpus, [n * hidden_size for n in num_tokens])
    chosen = fastest_of_all(seconds)
    _log.info("all-reduce: %s; %s", _dtype(chosen), _describe(num_tokens, seconds))
    return _dtype(chosen)


def _dtype(name: ReduceFormat) -> str:
    return next(dtype for dtype, format_ in FORMAT_OF_DTYPE.items() if format_ is name)


def _describe(num_tokens: Sequence[int], seconds: Sequence[dict[ReduceFormat, float]]) -> str:
    return "; ".join(
        f"{count} tokens: " + ", ".join(f"{_dtype(n)} {1e6 * s:.1f} us" for n, s in each.items())
        for count, each in zip(num_tokens, seconds, strict=True)
    )
