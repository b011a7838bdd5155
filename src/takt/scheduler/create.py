"""Makes the scheduler that a configuration asks for."""

from __future__ import annotations

from takt.config import CacheOptions, SchedulerOptions
from takt.errors import ConfigError, InvariantError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.fcfs import FCFSScheduler
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.pace import PaceScheduler
from takt.scheduler.priority import PriorityScheduler
from takt.scheduler.slo import SLO

_PLAIN: dict[str, type[FCFSScheduler] | type[PriorityScheduler]] = {
    "fcfs": FCFSScheduler,
    "priority": PriorityScheduler,
}


def create_scheduler(
    config: SchedulerOptions,
    cache: CacheOptions,
    kv: KVCacheManager,
    max_model_len: int,
    *,
    max_num_rows: int | None = None,
    max_steps_in_flight: int = 1,
    predictor: LearnedStepTime | None = None,
    num_micro_batches: int = 1,
    phases_differ: bool = False,
) -> Scheduler:
    """A scheduler over the pool `kv`; raises `ConfigError` for an unknown policy or small limits.

    `max_num_rows` bounds the rows of logits of a step (what no step can exceed if None). Pace needs
    a `predictor` of the length of steps.
    """
    name = config.policy
    if name != "pace" and name not in _PLAIN:
        raise ConfigError(
            f"--scheduling-policy {name!r} is not one of: auto, {', '.join(_PLAIN)}, pace"
        )
    limits = step_limits(
        config,
        max_model_len,
        max_num_rows=max_num_rows,
        max_steps_in_flight=max_steps_in_flight,
        num_micro_batches=num_micro_batches,
        phases_differ=phases_differ,
    )
    reserves_output = cache.kv_reservation == "full"
    if name in _PLAIN:
        return _PLAIN[name](limits, kv, reserves_output=reserves_output)
    if predictor is None:
        raise InvariantError("pace was asked for without a model of the length of steps")
    slo = SLO.from_ms(config.slo_itl_p99_ms, config.slo_ttft_p99_ms)
    return PaceScheduler(
        limits,
        kv,
        reserves_output=reserves_output,
        predictor=predictor,
        slo=slo,
        refuses=config.admission == "refuse",
    )


def step_limits(
    config: SchedulerOptions,
    max_model_len: int,
    *,
    max_num_rows: int | None = None,
    max_steps_in_flight: int = 1,
    num_micro_batches: int = 1,
    phases_differ: bool = False,
) -> SchedulerLimits:
    """Raises `ConfigError` for limits that contradict each other."""
    return SchedulerLimits(
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_rows=max_num_rows or config.max_num_batched_tokens + config.max_num_seqs,
        max_steps_in_flight=max_steps_in_flight,
        enable_chunked_prefill=config.enable_chunked_prefill,
        num_micro_batches=num_micro_batches,
        phases_differ=phases_differ,
    )
