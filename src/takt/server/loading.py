"""Makes a server ready: fetches the model, reads its tokenizer, starts the engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from takt.config import EngineConfig, ServerOptions
from takt.engine.client import EngineClient
from takt.engine.sizing import check_max_model_len
from takt.loading.base import Tokenizer
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer
from takt.models.config import read_model_config
from takt.server.chat import ChatRenderer
from takt.server.chat_template import load_chat_template
from takt.server.state import ServedModel, longest_token_chars

ResultT = TypeVar("ResultT")
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class TextSide:
    """What the server itself needs of a model."""

    tokenizer: Tokenizer
    chat: ChatRenderer
    max_token_chars: int


async def load_text_side(
    engine: EngineConfig, server: ServerOptions, on_progress: OnProgress
) -> TextSide:
    """Resolves the model (which may fetch it) and reads its tokenizer and chat template.

    Raises `ModelError`, or `ConfigError` for a template with a syntax error or a context that the
    model was not made for.
    """

    def load() -> TextSide:
        resolved = resolve_model(engine.model.model, on_progress)
        checkpoint = open_checkpoint(Path(resolved.path), engine.model.load_format)
        try:
            check_max_model_len(engine, read_model_config(checkpoint).max_position_embeddings)
            tokenizer = load_tokenizer(checkpoint, engine.model.tokenizer)
        finally:
            checkpoint.close()
        template = load_chat_template(
            server.chat_template, tokenizer.chat_template, str(resolved.path)
        )
        return TextSide(
            tokenizer, ChatRenderer(tokenizer, template), longest_token_chars(tokenizer)
        )

    return await in_daemon_thread(load)


async def in_daemon_thread(work: Callable[[], ResultT]) -> ResultT:
    """Unlike a pool's thread, it does not keep a stopped program waiting for a download."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(result: ResultT | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(ResultT, result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="takt-load", daemon=True).start()
    return await future


def served_model(
    text_side: TextSide, client: EngineClient, engine: EngineConfig, server: ServerOptions
) -> ServedModel:
    return ServedModel(
        names=model_names(engine, server),
        engine=client,
        tokenizer=text_side.tokenizer,
        chat=text_side.chat,
        created=int(time.time()),
        max_logprobs=engine.scheduler.max_logprobs,
        default_max_tokens=engine.scheduler.default_max_tokens,
        max_outstanding=(
            (engine.scheduler.max_num_seqs + engine.scheduler.max_num_waiting)
            * engine.parallel.data_parallel_size
        ),
        has_priorities=engine.scheduler.policy != "fcfs",
        keeps_targets=engine.scheduler.policy == "pace",
        max_token_chars=text_side.max_token_chars,
    )


def model_names(engine: EngineConfig, server: ServerOptions) -> tuple[str, ...]:
    return server.served_model_name or (engine.model.model,)
