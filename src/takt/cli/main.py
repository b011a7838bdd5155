"""The `takt` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

import takt
from takt.cli import bench, gateway, plan
from takt.cli.arguments import translate
from takt.cli.options import (
    ENGINE_TABLES,
    SERVER_TABLES,
    engine_config,
    server_options,
    with_options,
)
from takt.errors import ConfigError, InvalidRequestError, TaktError

app = typer.Typer(
    name="takt",
    help="An LLM inference engine whose contract is tail latency.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelArgument = Annotated[
    str, typer.Argument(help="Alias, Hub id, GGUF file or Hugging Face directory.")
]


@app.command()
def pull(model: ModelArgument) -> None:
    """Fetch a model into the cache and print where it is."""
    from takt.cli.pull import run_pull

    run_pull(model)


@app.command()
def models() -> None:
    """List the models that have a short name, and those in the cache."""
    from takt.cli.pull import run_models

    run_models()


@app.command()
@with_options(SERVER_TABLES, skip=("model",))
def serve(
    model_tag: Annotated[str | None, typer.Argument(metavar="MODEL", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="The same as the argument.")] = None,
    **options: Any,
) -> None:
    """Serve a model over HTTP, compatible with OpenAI's API."""
    from takt.server.serve import serve as run_server

    if model_tag is not None and model is not None and model_tag != model:
        raise ConfigError(f"two models are named: {model_tag!r} and --model {model!r}")
    chosen = model_tag or model
    if chosen is not None:
        options["model"] = chosen
    raise typer.Exit(run_server(engine_config(options), server_options(options)))


@app.command()
@with_options(ENGINE_TABLES, skip=("model",))
def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads standard input.")],
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens of this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    **options: Any,
) -> None:
    """Print a continuation of a text, token by token."""
    from takt.cli.talk import run_generate
    from takt.types.sampling_params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    run_generate(engine_config({**options, "model": model}), prompt, params)


@app.command()
@with_options(ENGINE_TABLES, skip=("model",))
def chat(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="System message to begin with.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens in an answer.")] = 1024,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    **options: Any,
) -> None:
    """Talk to a model in the terminal."""
    from takt.cli.talk import run_chat
    from takt.types.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    run_chat(engine_config({**options, "model": model}), system, params)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(takt.__version__)


for command in (bench, plan, gateway):
    command.register(app)


def known_flags(words: Sequence[str]) -> tuple[int, frozenset[str]]:
    """Number of leading words that name a command, and every spelling of its options."""
    command: Any = typer.main.get_command(app)
    depth = 0
    while depth < len(words) and words[depth] in getattr(command, "commands", {}):
        command = command.commands[words[depth]]
        depth += 1
    names = {"--help", "-h"}
    for parameter in command.params:
        names.update(parameter.opts)
        names.update(parameter.secondary_opts)
    return depth, frozenset(names)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; mistakes of the user's end in one line on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        depth, known = known_flags(given)
        if depth:
            given = [*given[:depth], *translate(given[depth:], known)]
        app(args=given, prog_name="takt")
    except (ConfigError, InvalidRequestError) as error:
        _fail(error, 2)
    except TaktError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _fail(error: Exception, code: int) -> None:
    console = Console(stderr=True, highlight=False)
    console.print("[bold red]takt:[/]", end=" ")
    console.print(str(error), markup=False, soft_wrap=True)
    raise SystemExit(code) from None
