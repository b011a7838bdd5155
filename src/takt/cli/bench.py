"""`takt bench`: load on a server, a table, and files of the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from takt.bench.options import BenchOptions
from takt.cli.options import bench_options, with_options

UrlArgument = Annotated[str, typer.Argument(help="Base URL of an OpenAI-compatible server.")]


_DRAW_SECONDS = 0.25
_FILE_WIDTH = 120

OnProgress = Callable[[str, int, int], None]


def register(app: typer.Typer) -> None:
    """Adds the command `bench`."""

    @app.command()
    @with_options((BenchOptions,))
    def bench(url: UrlArgument = "http://127.0.0.1:8000", **options: Any) -> None:
        """Load an OpenAI-compatible server and report its latencies and throughput."""
        if not _run(url, bench_options(options)):
            raise typer.Exit(1)


def _run(url: str, options: BenchOptions) -> bool:
    """True if every request succeeded."""
    from takt.bench.bench import run_bench
    from takt.bench.html_report import html_report
    from takt.bench.results import to_json, write_file
    from takt.bench.table import print_report

    with ProgressBars() as on_progress:
        result = run_bench(url, options, on_progress)
    writes_to_stdout = options.json == "-"
    print_report(report_console(writes_to_stdout), result.setting, result.summary)
    if options.json is not None:
        content = to_json(result.setting, result.summary)
        if writes_to_stdout:
            sys.stdout.buffer.write(content)
        else:
            write_file(options.json, content, "--json")
    if options.html is not None:
        page = html_report(result.setting, result.summary, result.run)
        write_file(options.html, page, "--html")
    return result.summary.num_ok == result.summary.num_requests


def report_console(is_stderr: bool) -> Console:
    """In a file, a table is as wide as it needs."""
    console = Console(highlight=False, stderr=is_stderr)
    if not console.is_terminal:
        console.width = max(console.width, _FILE_WIDTH)
    return console


class ProgressBars:
    """A bar per stage, drawn when something has ended and no more than four times a second.

    Drawing takes time from what is measured.
    """

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._next_draw_s = 0.0

    def __enter__(self) -> OnProgress:
        self._progress.start()
        return self._on_progress

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done)
        now_s = time.monotonic()
        if now_s >= self._next_draw_s and self._progress.console.is_terminal:
            self._next_draw_s = now_s + _DRAW_SECONDS
            self._progress.refresh()
