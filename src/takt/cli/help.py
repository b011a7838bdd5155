"""The `--help` of commands: sections of options, every name in full.

A table with borders cuts long names on a terminal of 80 columns: `--kv-cache-memory-b…` can't be
copied.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

_MAX_NAME_COLUMNS = 26
"""Longer names stand on a line of their own."""


class Command(TyperCommand):
    """A command whose help has a section for each `rich_help_panel`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "rich_markup_mode": None})

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Required arguments without braces, as everywhere else."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                own = "Arguments" if parameter.param_type_name == "argument" else "Options"
                section = getattr(parameter, "rich_help_panel", None) or own
                sections.setdefault(section, []).append(record)
        for title, rows in sections.items():
            _write_section(formatter, title, rows)


class Group(TyperGroup):
    """Commands, each with its whole first sentence."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "rich_markup_mode": None})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command the help is the answer, and still a mistake by its exit code."""
        if not args:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        sentences = [
            (name, (command.help or "").partition("\n\n")[0])
            for name, command in self.commands.items()
        ]
        _write_section(formatter, "Commands", sentences)
        _write_section(formatter, "Options", [record for record in records if record])


class App(typer.Typer):
    """Commands and groups with this help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, "rich_markup_mode": None, **settings})

    def command(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[CommandFunction], CommandFunction]:
        return super().command(name, **{"cls": Command, **settings})


def _write_section(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """All of a section in two columns; a flag in a text isn't broken at its hyphens."""
    indent = 4 + min(max(len(name) for name, _ in rows), _MAX_NAME_COLUMNS)
    formatter.write(f"\n{typer.style(title, bold=True)}:\n")
    for name, text in rows:
        lines = textwrap.wrap(
            " ".join(text.split()), formatter.width - indent, break_on_hyphens=False
        )
        head = f"  {name}"
        if len(head) + 2 > indent:
            formatter.write(f"{head}\n")
            head = ""
        for line in lines or [""]:
            formatter.write(f"{head:{indent}}{line}\n")
            head = ""
