"""`takt bench`: load on a server, a table, and files of the results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from takt.bench.options import BenchOptions
from takt.cli.options import bench_options, with_options
from takt.cli.report import check_folder, report_console, write_report
from takt.cli.stage_bars import stage_bars

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Base URL of an OpenAI-compatible server.")
]


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
    from takt.bench.results import to_json
    from takt.bench.table import print_report

    json_file = None if options.json in (None, "-") else Path(options.json)
    html_file = None if options.html is None else Path(options.html)
    check_folder(json_file, "--json")
    check_folder(html_file, "--html")
    with stage_bars() as on_progress:
        result = run_bench(url, options, on_progress)
    console = report_console(is_stderr=options.json == "-")
    print_report(console, result.setting, result.summary)
    content = to_json(result.setting, result.summary)
    if json_file is not None:
        write_report(json_file, content, "--json")
    elif options.json is not None:
        sys.stdout.buffer.write(content)
    if html_file is not None:
        page = html_report(result.setting, result.summary, result.run)
        write_report(html_file, page, "--html")
    return result.summary.num_ok == result.summary.num_requests
