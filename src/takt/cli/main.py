"""The `takt` command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, Protocol, cast

import typer

import takt
from takt.cli.arguments import translate
from takt.cli.help import App
from takt.errors import TaktError

MODULES = {
    "pull": "model_commands",
    "models": "model_commands",
    "serve": "model_commands",
    "generate": "model_commands",
    "chat": "model_commands",
    "version": "model_commands",
    "bench": "bench",
    "explain": "explain",
    "plan": "plan",
    "simulate": "simulate",
    "verify": "verify",
    "topo": "topo",
    "profile": "profile",
    "gateway": "gateway",
    "dlq": "gateway",
}
"""The module of `takt.cli` that has each command."""


class _UsageShape(Protocol):
    """What typer's exceptions for mistakes in arguments have."""

    def format_message(self) -> str: ...


_USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[1])
"""`UsageError`: typer has it from click or from a copy of its own, as its version goes."""


def make_app(name: str | None = None) -> App:
    """All commands; if `name` is one of them it alone, since making all takes a while."""
    app = App(
        name="takt",
        help="An LLM inference engine whose contract is tail latency.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_options_of_all)
    modules = [MODULES[name]] if name in MODULES else dict.fromkeys(MODULES.values())
    for module in modules:
        importlib.import_module(f"takt.cli.{module}").register(app)
    if name in MODULES:
        app.registered_commands = [
            command
            for command in app.registered_commands
            if name == (command.name or getattr(command.callback, "__name__", None))
        ]
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(takt.__version__)
        raise typer.Exit


def _options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def command_line(words: Sequence[str]) -> Any:
    """What parses `words`."""
    return typer.main.get_command(make_app(words[0] if words else None))


def _named_command(root: Any, words: Sequence[str]) -> tuple[int, Any]:
    """The command of `root` that the leading words name, and how many they are."""
    command = root
    depth = 0
    while depth < len(words) and words[depth] in getattr(command, "commands", {}):
        command = command.commands[words[depth]]
        depth += 1
    return depth, command


def known_flags(words: Sequence[str], root: Any = None) -> tuple[int, frozenset[str]]:
    """Number of leading words that name a command, and every spelling of its options.

    No word does if one stands where a group wants a command of its own, and is none.
    """
    depth, command = _named_command(root or command_line(words), words)
    if hasattr(command, "commands") and depth < len(words) and not words[depth].startswith("-"):
        return 0, frozenset()
    names = {"--help", "-h"}
    for parameter in command.params:
        names.update(parameter.opts)
        names.update(parameter.secondary_opts)
    return depth, frozenset(names)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; mistakes of the user's end in one line on stderr and exit code 2."""
    # numpy's BLAS starts a thread for each CPU when it is loaded, and nothing here multiplies large
    # matrices with it. Processes that this one starts inherit it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = command_line(given)
        depth, known = known_flags(given, command)
        if depth:
            given = [*given[:depth], *translate(given[depth:], known)]
        code = command.main(args=given, prog_name="takt", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except TaktError as error:
        _fail(error, error.exit_code)
    except _USAGE_ERROR as error:
        _fail(_usage_line(error, given), 2)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None


def _usage_line(error: BaseException, given: list[str]) -> str:
    """One line for a mistake that typer found."""
    message = " ".join(cast(_UsageShape, error).format_message().split()).rstrip(".")
    command = " ".join(["takt", *given[: _named_command(command_line(given), given)[0]]])
    return f"{message}; see {command} --help"


def _fail(error: Exception | str, code: int) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print("[bold red]takt:[/]", end=" ")
    console.print(str(error), markup=False, soft_wrap=True)
    raise SystemExit(code) from None
