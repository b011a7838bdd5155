"""Loads a model with its weights packed, ready for an engine core to be built around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from takt.config import EngineConfig
from takt.engine.build import LoadedModel
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.memory import available_memory_bytes
from takt.engine.precision import resolve_policy, with_activations
from takt.engine.sizing import EngineSizes, KVShape, check_max_model_len, plan_sizes
from takt.errors import ConfigError
from takt.loading.base import Checkpoint, Tokenizer
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_eos_token_ids, load_tokenizer
from takt.models.architecture import ModelConfig
from takt.models.config import read_model_config
from takt.models.decoder import load_decoder
from takt.ops.create import create_ops, num_usable_cpus
from takt.types.precision import PrecisionInUse

ResultT = TypeVar("ResultT")
OnProgress = Callable[[str, int, int], None]
"""Stage, done, total; total is 0 where it isn't known."""


def load_model(
    config: EngineConfig, on_progress: OnProgress | None = None, *, is_replica: bool = False
) -> LoadedModel:
    """Resolves, reads and packs the model that `config` names; raises `TaktError`s.

    Of the tokenizer only the ids that end a generation are read. `is_replica`: of the engines that
    `config` asks for, this is one.
    """
    if not is_replica:
        _check_alone(config)
    return _load(config, on_progress, lambda checkpoint: _nothing)[0]


def load_model_and_tokenizer(
    config: EngineConfig, on_progress: OnProgress | None = None
) -> tuple[LoadedModel, Tokenizer]:
    """Likewise, and reads the tokenizer in a thread beside the weights."""
    _check_alone(config)
    with ThreadPoolExecutor(1, thread_name_prefix="takt-tokenizer") as thread:
        return _load(
            config,
            on_progress,
            lambda checkpoint: (
                thread.submit(load_tokenizer, checkpoint, config.model.tokenizer).result
            ),
        )


def _check_alone(config: EngineConfig) -> None:
    if config.parallel.data_parallel_size > 1:
        raise ConfigError(
            f"--data-parallel-size {config.parallel.data_parallel_size} is for takt serve, which "
            "divides requests over replicas; here there is one engine"
        )


def _load(
    config: EngineConfig,
    on_progress: OnProgress | None,
    begin_beside: Callable[[Checkpoint], Callable[[], ResultT]],
) -> tuple[LoadedModel, ResultT]:
    """`begin_beside` starts work on the open checkpoint and returns how to wait for its result."""
    config = with_activations(config)
    precision = PrecisionInUse(resolve_policy(config))
    resolved = resolve_model(config.model.model, on_progress)
    report = None
    if on_progress is not None:
        report = functools.partial(on_progress, "Loading")
    checkpoint = open_checkpoint(Path(resolved.path), config.model.load_format)
    try:
        model = read_model_config(checkpoint)
        check_max_model_len(config, model.max_position_embeddings)
        result_beside = begin_beside(checkpoint)
        eos_token_ids = load_eos_token_ids(checkpoint, config.model.tokenizer)
        if config.parallel.distributed_executor_backend == "ray":
            from takt.engine import ray_workers
            from takt.engine.load_hosts import load_hosts

            loaded = load_hosts(
                config,
                checkpoint,
                Path(resolved.path),
                make_workers=ray_workers.RayWorkers,
                eos_token_ids=eos_token_ids,
            )
        elif config.parallel.num_ranks > 1:
            from takt.engine.load_ranks import load_ranks

            loaded = load_ranks(
                config,
                checkpoint,
                Path(resolved.path),
                num_cpus=num_usable_cpus(),
                eos_token_ids=eos_token_ids,
                on_progress=report,
            )
        else:
            loaded = _load_one_rank(config, checkpoint, model, precision, eos_token_ids, report)
        return loaded, _or_close(result_beside, loaded.close)
    finally:
        checkpoint.close()


def _load_one_rank(
    config: EngineConfig,
    checkpoint: Checkpoint,
    model: ModelConfig,
    precision: PrecisionInUse,
    eos_token_ids: frozenset[int],
    on_progress: Callable[[int, int], None] | None,
) -> LoadedModel:
    kv_shape = KVShape(
        groups=model.kv_groups(),
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_model_len=model.max_position_embeddings,
    )
    # What cannot fit before the weights are there will not fit beside them.
    plan_sizes(config, kv_shape, available_memory_bytes(), vocab_size=model.vocab_size)
    ops = create_ops(
        config.model.backend,
        config.model.num_threads,
        int8_tokens=precision.policy.int8_tokens,
    )
    decoder = load_decoder(checkpoint, model, ops, precision=precision, on_progress=on_progress)

    def make_executor(sizes: EngineSizes) -> Executor:
        ops.allocate_kv(sizes.kv, sizes.num_blocks_in_memory)
        program = ops.program(
            decoder.forward,
            sizes.limits,
            max_position=sizes.max_model_len,
            eager=config.model.enforce_eager,
        )
        return InlineExecutor(program)

    return LoadedModel(
        kv_shape=kv_shape,
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        precision=precision.describe(),
        phases_differ=precision.policy.phases_differ,
        weight_bytes=ops.weight_bytes,
        num_threads=ops.num_threads,
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=ops.close,
    )


def _or_close(result: Callable[[], ResultT], close: Callable[[], None]) -> ResultT:
    try:
        return result()
    except BaseException:
        close()
        raise


def _nothing() -> None:
    pass
