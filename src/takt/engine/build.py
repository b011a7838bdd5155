"""Puts an engine core together: model, KV pool, scheduler, runner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from takt.clock import Clock
from takt.config import EngineConfig
from takt.engine.core import EngineCore
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.memory import available_memory_bytes
from takt.engine.requests import RequestRules
from takt.engine.runner import Runner
from takt.engine.sizing import EngineSizes, KVShape, plan_sizes
from takt.kvcache.manager import KVCacheManager
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer
from takt.models.config import read_model_config
from takt.models.decoder import load_decoder
from takt.ops.create import create_ops
from takt.scheduler.create import create_scheduler

_log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
"""Stage, done, total; total is 0 where it isn't known."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose weights are in place and whose KV pool is not made yet."""

    kv_shape: KVShape
    vocab_size: int
    eos_token_ids: Set[int]
    num_threads: int
    max_steps_in_flight: int
    make_executor: Callable[[EngineSizes], Executor]
    """Allocates the KV pool and captures the program."""
    close: Callable[[], None]


def load_model(config: EngineConfig, on_progress: OnProgress | None = None) -> LoadedModel:
    """Resolves, reads and packs the model that `config` names; raises `TaktError`s."""
    resolved = resolve_model(config.model.model, on_progress)
    checkpoint = open_checkpoint(Path(resolved.path), config.model.load_format)
    try:
        model = read_model_config(checkpoint)
        ops = create_ops(config.model.backend, config.model.num_threads)
        decoder = load_decoder(
            checkpoint,
            model,
            ops,
            dtype=config.model.dtype,
            on_progress=None
            if on_progress is None
            else lambda done, total: on_progress("Loading", done, total),
        )
        eos_token_ids = load_tokenizer(checkpoint, config.model.tokenizer).eos_token_ids
    finally:
        checkpoint.close()

    def make_executor(sizes: EngineSizes) -> Executor:
        ops.allocate_kv(sizes.kv, sizes.num_blocks)
        program = ops.program(
            decoder.forward,
            sizes.limits,
            max_position=sizes.max_model_len,
            eager=config.model.enforce_eager,
        )
        return InlineExecutor(program)

    return LoadedModel(
        kv_shape=KVShape(
            groups=model.kv_groups(),
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            max_model_len=model.max_position_embeddings,
        ),
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        num_threads=getattr(ops, "num_threads", 1),
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=getattr(ops, "close", _nothing),
    )


def build_core(config: EngineConfig, model: LoadedModel, clock: Clock) -> EngineCore:
    """An engine core ready for requests; raises `ConfigError` if the pool cannot be made."""
    sizes = plan_sizes(
        config,
        model.kv_shape,
        available_memory_bytes(),
        vocab_size=model.vocab_size,
        max_steps_in_flight=model.max_steps_in_flight,
    )
    if sizes.notice is not None:
        _log.warning(sizes.notice)
    executor = model.make_executor(sizes)
    kv = KVCacheManager(sizes.kv, sizes.num_blocks, config.cache.enable_prefix_caching)
    scheduler = create_scheduler(config.scheduler, config.cache, kv, sizes.max_model_len)
    return EngineCore(
        scheduler=scheduler,
        runner=Runner(executor, sizes.limits, sizes.kv.block_size, kv, clock),
        rules=RequestRules(
            vocab_size=model.vocab_size,
            max_model_len=sizes.max_model_len,
            max_logprobs=config.scheduler.max_logprobs,
            default_max_tokens=config.scheduler.default_max_tokens,
            eos_token_ids=model.eos_token_ids,
        ),
        sizes=sizes,
        num_threads=model.num_threads,
        clock=clock,
        on_close=model.close,
    )


def _nothing() -> None:
    pass
