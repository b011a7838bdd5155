"""`takt generate` and `takt chat`: a model in this process, its text as it comes."""

from __future__ import annotations

import sys

from rich.console import Console

from takt.config import EngineConfig
from takt.errors import ConfigError, InvalidRequestError
from takt.llm import LLM
from takt.server.progress import show_progress
from takt.types.sampling_params import SamplingParams


def run_generate(config: EngineConfig, prompt: str, params: SamplingParams) -> None:
    text = sys.stdin.read() if prompt == "-" else prompt
    with _load(config) as llm:
        sys.stdout.write(text)
        for piece in llm.stream(text, params):
            _write(piece)
        sys.stdout.write("\n")


def run_chat(config: EngineConfig, system: str | None, params: SamplingParams) -> None:
    console = Console(stderr=True, highlight=False)
    with _load(config) as llm:
        if llm.tokenizer.chat_template is None:
            raise ConfigError(
                f"{config.model.model} has no chat template, so it cannot chat; "
                "takt generate continues a text with it"
            )
        messages: list[dict[str, str]] = []
        if system is not None:
            messages.append({"role": "system", "content": system})
        console.print("[dim]An empty line or Ctrl-D ends the chat; Ctrl-C stops an answer.[/]")
        while True:
            try:
                line = console.input("[bold]> [/]")
            except (EOFError, KeyboardInterrupt):
                console.print()
                return
            if not line.strip():
                return
            messages.append({"role": "user", "content": line})
            try:
                answer = _answer(llm, messages, params)
            except InvalidRequestError as error:
                console.print(f"takt: {error}", markup=False)
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": answer})


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Prints an answer as it comes and returns it; Ctrl-C keeps what was said so far."""
    pieces: list[str] = []
    stream = llm.stream_chat(messages, params)
    try:
        for piece in stream:
            pieces.append(piece)
            _write(piece)
    except KeyboardInterrupt:
        stream.close()
    sys.stdout.write("\n")
    return "".join(pieces)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _load(config: EngineConfig) -> LLM:
    with show_progress(Console(stderr=True)) as on_progress:
        return LLM.from_config(config, on_progress=on_progress)
