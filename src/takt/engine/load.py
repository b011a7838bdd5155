"""Loads a model with its weights packed, ready for an engine core to be built around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from takt.config import EngineConfig
from takt.engine.build import LoadedModel
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.precision import resolve_policy
from takt.engine.sizing import EngineSizes, KVShape
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer
from takt.models.config import read_model_config
from takt.models.decoder import load_decoder
from takt.ops.create import create_ops
from takt.types.precision import PrecisionInUse

OnProgress = Callable[[str, int, int], None]
"""Stage, done, total; total is 0 where it isn't known."""


def load_model(config: EngineConfig, on_progress: OnProgress | None = None) -> LoadedModel:
    """Resolves, reads and packs the model that `config` names; raises `TaktError`s."""
    precision = PrecisionInUse(resolve_policy(config))
    resolved = resolve_model(config.model.model, on_progress)
    checkpoint = open_checkpoint(Path(resolved.path), config.model.load_format)
    try:
        model = read_model_config(checkpoint)
        ops = create_ops(config.model.backend, config.model.num_threads)
        decoder = load_decoder(
            checkpoint,
            model,
            ops,
            precision=precision,
            on_progress=None
            if on_progress is None
            else lambda done, total: on_progress("Loading", done, total),
        )
        tokenizer = load_tokenizer(checkpoint, config.model.tokenizer)
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
        tokenizer=tokenizer,
        precision=precision.describe(),
        num_threads=getattr(ops, "num_threads", 1),
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=getattr(ops, "close", _nothing),
    )


def _nothing() -> None:
    pass
