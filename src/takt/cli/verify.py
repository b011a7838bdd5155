"""`takt verify`: a plan against the service that runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from takt.cli.options import verify_options, with_options
from takt.cli.report import check_folder, report_console, write_report
from takt.cli.stage_bars import stage_bars
from takt.verify.options import VerifyOptions

ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Model to serve here; the plan's if not given."),
]

FAIL_EXIT_CODE = 1
"""A target or a prediction is missed, or a request failed; mistakes in what is asked end with 2."""


def register(app: typer.Typer) -> None:
    """Adds the command `verify`."""

    @app.command()
    @with_options((VerifyOptions,))
    def verify(model: ModelArgument = None, **options: Any) -> None:
        """Drive the planned load, and compare its P99s with what was predicted."""
        if not _run(model, verify_options(options)):
            raise typer.Exit(FAIL_EXIT_CODE)


def _run(model: str | None, options: VerifyOptions) -> bool:
    from takt.verify.flags import VerifyFlags
    from takt.verify.report import comparison_report, print_comparison
    from takt.verify.verify import verify

    json_file = None if options.json in (None, "-") else Path(options.json)
    check_folder(json_file, "--json")
    standard_input = sys.stdin.buffer.read() if options.plan == "-" else b""
    request = VerifyFlags(model, options, standard_input).request()
    with stage_bars() as on_progress:
        found = verify(request, on_progress)
    print_comparison(found, report_console(is_stderr=options.json == "-"))
    if options.json is not None:
        content = json.dumps(comparison_report(found), indent=2, allow_nan=False) + "\n"
        if json_file is None:
            sys.stdout.write(content)
        else:
            write_report(json_file, content, "--json")
    return found.passes
