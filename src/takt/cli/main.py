"""The `takt` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, Protocol, cast

import typer
from rich.console import Console

import takt
from takt.cli import bench, explain, gateway, plan, profile, topo, verify
from takt.cli.arguments import translate
from takt.cli.help import App
from takt.cli.options import (
    ENGINE_TABLES,
    SERVER_TABLES,
    engine_config,
    server_options,
    with_options,
)
from takt.errors import ConfigError, InvalidRequestError, TaktError

app = App(
    name="takt",
    help="An LLM inference engine whose contract is tail latency.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_MODEL_HELP = (
    "A short name that `takt models` lists, a Hub id (owner/name), a GGUF file, or a Hugging Face "
    "directory."
)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP)]


class _UsageShape(Protocol):
    """What typer's exceptions for mistakes in arguments have."""

    def format_message(self) -> str: ...


_USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[1])
"""`UsageError`: typer has it from click or from a copy of its own, as its version goes."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(takt.__version__)
        raise typer.Exit


@app.callback()
def _options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


@app.command()
def pull(model: ModelArgument) -> None:
    """Fetch a model into the cache and print where it is."""
    from takt.cli.pull import run_pull

    run_pull(model)


@app.command()
def models() -> None:
    """List the models that have a short name, and whether they are in the cache."""
    from takt.cli.pull import run_models

    run_models()


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(takt.__version__)


for command in (bench, explain, plan, verify, topo, profile, gateway):
    command.register(app)


def _named_command(words: Sequence[str]) -> tuple[int, Any]:
    """The command that the leading words name, and how many they are."""
    command: Any = typer.main.get_command(app)
    depth = 0
    while depth < len(words) and words[depth] in getattr(command, "commands", {}):
        command = command.commands[words[depth]]
        depth += 1
    return depth, command


def known_flags(words: Sequence[str]) -> tuple[int, frozenset[str]]:
    """Number of leading words that name a command, and every spelling of its options.

    No word does if one stands where a group wants a command of its own, and is none.
    """
    depth, command = _named_command(words)
    if hasattr(command, "commands") and depth < len(words) and not words[depth].startswith("-"):
        return 0, frozenset()
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
        code = app(args=given, prog_name="takt", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except (ConfigError, InvalidRequestError) as error:
        _fail(error, 2)
    except TaktError as error:
        _fail(error, 1)
    except _USAGE_ERROR as error:
        _fail(_usage_line(error, given), 2)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None


def _usage_line(error: BaseException, given: list[str]) -> str:
    """One line for a mistake that typer found."""
    message = " ".join(cast(_UsageShape, error).format_message().split()).rstrip(".")
    command = " ".join(["takt", *given[: _named_command(given)[0]]])
    return f"{message}; see {command} --help"


def _fail(error: Exception | str, code: int) -> NoReturn:
    console = Console(stderr=True, highlight=False)
    console.print("[bold red]takt:[/]", end=" ")
    console.print(str(error), markup=False, soft_wrap=True)
    raise SystemExit(code) from None
