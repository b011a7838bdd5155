"""Puts an engine core together around a loaded model: sizes, KV pool, scheduler, runner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from takt.clock import Clock
from takt.config import EngineConfig
from takt.engine.core import EngineCore
from takt.engine.executor import Executor
from takt.engine.memory import available_memory_bytes
from takt.engine.messages import PipelineInfo
from takt.engine.requests import RequestRules
from takt.engine.runner import Runner
from takt.engine.sizing import EngineSizes, KVShape, plan_sizes
from takt.engine.step_time import calibrated
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.create import create_scheduler
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.pipeline_depth import PipelineDepth

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose weights are in place and whose KV pool is not made yet."""

    kv_shape: KVShape
    vocab_size: int
    eos_token_ids: frozenset[int]
    precision: str
    """The precision policy and what it gave this model, in one line."""
    weight_bytes: int
    """Packed matrices in memory; 0 where the backend does not say."""
    num_threads: int
    max_steps_in_flight: int
    make_executor: Callable[[EngineSizes], Executor]
    """Allocates the KV pool and captures the program."""
    close: Callable[[], None]
    num_micro_batches: int = 1
    """Of a pipeline; see `SchedulerLimits`."""
    first_depth: int | None = None
    """Steps that a pipeline whose depth follows the load begins with; the most if None."""
    sentinels: tuple[int, ...] = ()
    """File descriptors that become readable when a process of the model's ends."""
    ending: Callable[[], str] = lambda: "a rank has ended"
    """Which process that was, and how it ended."""
    pipeline: PipelineInfo | None = None
    phases_differ: bool = False
    """See `SchedulerLimits`."""
    available_bytes: int | None = None
    """Memory that is free for the KV pool, where it is not this host's alone."""


def build_core(config: EngineConfig, model: LoadedModel, clock: Clock) -> EngineCore:
    """An engine core ready for requests; raises `ConfigError` if the pool cannot be made."""
    sizes = plan_sizes(
        config,
        model.kv_shape,
        available_memory_bytes() if model.available_bytes is None else model.available_bytes,
        vocab_size=model.vocab_size,
        max_steps_in_flight=model.max_steps_in_flight,
    )
    if sizes.notice is not None:
        _log.warning(sizes.notice)
    executor = model.make_executor(sizes)
    kv = _kv(config, sizes)
    learned, step_times = None, ""
    if config.scheduler.models_time:
        calibration = calibrated(config, executor, sizes, model.num_threads, clock)
        learned, step_times = LearnedStepTime(calibration.model), calibration.summary
    scheduler = create_scheduler(
        config.scheduler,
        config.cache,
        kv,
        sizes.max_model_len,
        max_num_rows=sizes.limits.max_num_rows,
        max_steps_in_flight=executor.max_steps_in_flight,
        num_micro_batches=model.num_micro_batches,
        predictor=learned,
        phases_differ=model.phases_differ,
    )
    is_pipeline = model.num_micro_batches > 1
    runner = Runner(executor, sizes.limits, sizes.kv.block_size, kv, clock, is_pipeline=is_pipeline)
    follows_load = is_pipeline and config.parallel.pipeline_depth == "auto"
    return EngineCore(
        scheduler=scheduler,
        runner=runner,
        rules=RequestRules(
            vocab_size=model.vocab_size,
            max_model_len=sizes.max_model_len,
            max_logprobs=config.scheduler.max_logprobs,
            default_max_tokens=config.scheduler.default_max_tokens,
            eos_token_ids=model.eos_token_ids,
        ),
        sizes=sizes,
        num_threads=model.num_threads,
        precision=model.precision,
        clock=clock,
        on_close=model.close,
        step_time=learned,
        step_times=step_times,
        refuses=config.scheduler.admission == "refuse",
        sentinels=model.sentinels,
        ending=model.ending,
        pipeline=model.pipeline,
        depth=_depth(model, executor.max_steps_in_flight, scheduler, runner)
        if follows_load
        else None,
        kv=kv,
    )


def _kv(config: EngineConfig, sizes: EngineSizes) -> KVCacheManager:
    return KVCacheManager(
        sizes.kv,
        sizes.num_blocks,
        config.cache.enable_prefix_caching,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=sizes.max_model_len,
        num_host_blocks=sizes.num_host_blocks,
    )


def _depth(model: LoadedModel, most: int, scheduler: Scheduler, runner: Runner) -> PipelineDepth:
    """What follows the load with the depth of a pipeline; the scheduler begins with its first."""
    depth = PipelineDepth(
        first=model.first_depth or most,
        most=most,
        unwritten_share=lambda: scheduler.kv_unwritten_share(runner.num_in_flight_tokens),
    )
    scheduler.depth = depth.depth
    return depth
