"""The commands around a model in this process or a server: `takt serve`, `generate` and others."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import takt
from takt.cli.options import (
    ENGINE_TABLES,
    SERVER_TABLES,
    engine_config,
    server_options,
    with_options,
)
from takt.errors import ConfigError

_MODEL_HELP = (
    "A short name that `takt models` lists, a Hub id (owner/name), a GGUF file, or a Hugging Face "
    "directory."
)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP)]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (pull, models, serve, generate, chat, version):
        app.command()(command)


def pull(model: ModelArgument) -> None:
    """Fetch a model into the cache and print where it is."""
    from takt.cli.pull import run_pull

    run_pull(model)


def models() -> None:
    """List the models that have a short name, and whether they are in the cache."""
    from takt.cli.pull import run_models

    run_models()


@with_options(SERVER_TABLES, skip=("model",))
def serve(
    model_tag: Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP)] = None,
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


@with_options(ENGINE_TABLES, skip=("model",))
def generate(
    model: ModelArgument,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads standard input.")
    ],
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[
        float, typer.Option(help="Randomness of the choice; 0 always takes the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[
        float,
        typer.Option(help="Keep the likeliest tokens up to this share of probability; 1 is off."),
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Number that makes random choices repeatable.")
    ] = None,
    **options: Any,
) -> None:
    """Print a continuation of a text, token by token."""
    from takt.cli.talk import run_generate
    from takt.types.sampling_params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    run_generate(engine_config({**options, "model": model}), prompt, params)


@with_options(ENGINE_TABLES, skip=("model",))
def chat(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="System message to begin with.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens in an answer.")] = 1024,
    temperature: Annotated[
        float, typer.Option(help="Randomness of the choice; 0 always takes the likeliest token.")
    ] = 0.7,
    seed: Annotated[
        int | None, typer.Option(help="Number that makes random choices repeatable.")
    ] = None,
    **options: Any,
) -> None:
    """Talk to a model in the terminal."""
    from takt.cli.talk import run_chat
    from takt.types.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    run_chat(engine_config({**options, "model": model}), system, params)


def version() -> None:
    """Print the version."""
    typer.echo(takt.__version__)
