"""`takt generate` and `takt chat`: a model in this process, its text as it comes."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from takt.config import EngineConfig
from takt.errors import InvalidRequestError
from takt.llm import LLM
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
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        tasks = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=None)
            progress.update(tasks[stage], completed=done, total=total or None)

        return LLM.from_config(config, on_progress=on_progress)
