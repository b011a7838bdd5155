"""`takt serve` around the fake engine process: all of the server's life, and no model.

Arguments: the fake engine's behaviour (see fake_engine_process.py) or `fake:load-forever`, then
options as NAME=VALUE.
"""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path

from server_fakes import CHATML, ByteTokenizer

from takt.config import EngineConfig, ModelConfigOptions, ParallelOptions, ServerOptions
from takt.engine.proc_client import ProcessEngineClient
from takt.server import loading
from takt.server import serve as serving
from takt.server.chat import ChatRenderer
from takt.server.chat_template import load_chat_template
from takt.server.loading import TextSide

ENGINE = Path(__file__).parent.parent / "engine" / "fake_engine_process.py"


class WideTokenizer(ByteTokenizer):
    """Every id of the fake model's vocabulary is a word."""

    def token_bytes(self, token_id: int) -> bytes:
        return b" w%d" % token_id


async def load_text_side(
    engine: EngineConfig, server: ServerOptions, on_progress: object
) -> TextSide:
    if engine.model.model == "fake:load-forever":
        sys.stderr.write("loading starts\n")
        await loading.in_daemon_thread(threading.Event().wait)
    template = load_chat_template(server.chat_template, CHATML, "fake")
    tokenizer = WideTokenizer()
    return TextSide(tokenizer, ChatRenderer(tokenizer, template), max_token_chars=12)


def main(behaviour: str, *options: str) -> int:
    serving.load_text_side = load_text_side  # type: ignore[assignment]
    serving.ProcessEngineClient = functools.partial(  # type: ignore[misc,assignment]
        ProcessEngineClient, command=(sys.executable, str(ENGINE))
    )
    chosen = dict(option.split("=", 1) for option in options)
    values: dict[str, object] = dict(chosen)
    for name, convert in (("port", int), ("drain_timeout_seconds", float)):
        if name in chosen:
            values[name] = convert(chosen[name])
    num_replicas = int(chosen.get("data_parallel_size", 1))
    values.pop("data_parallel_size", None)
    engine = EngineConfig(
        model=ModelConfigOptions(model=behaviour),
        parallel=ParallelOptions(data_parallel_size=num_replicas),
    )
    return serving.serve(engine, ServerOptions(**values))  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
