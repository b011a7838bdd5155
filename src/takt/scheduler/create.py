"""Makes the scheduler that a configuration asks for."""

from __future__ import annotations

from takt.config import CacheOptions, SchedulerOptions
from takt.errors import ConfigError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.fcfs import FCFSScheduler
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.priority import PriorityScheduler

_POLICIES: dict[str, type[Scheduler]] = {"fcfs": FCFSScheduler, "priority": PriorityScheduler}


def create_scheduler(
    config: SchedulerOptions,
    cache: CacheOptions,
    kv: KVCacheManager,
    max_model_len: int,
    *,
    max_num_rows: int | None = None,
    max_steps_in_flight: int = 1,
) -> Scheduler:
    """A scheduler over the pool `kv`; raises `ConfigError` for an unknown policy or small limits.

    `max_num_rows` bounds the rows of logits of a step (what no step can exceed if None).
    """
    policy = _POLICIES.get(config.scheduling_policy)
    if policy is None:
        raise ConfigError(
            f"--scheduling-policy {config.scheduling_policy!r} is not one of: "
            + ", ".join(_POLICIES)
        )
    limits = SchedulerLimits(
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_rows=max_num_rows or config.max_num_batched_tokens + config.max_num_seqs,
        max_steps_in_flight=max_steps_in_flight,
        enable_chunked_prefill=config.enable_chunked_prefill,
    )
    return policy(limits, kv, reserves_output=cache.kv_reservation == "full")
