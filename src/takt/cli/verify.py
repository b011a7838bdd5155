"""`takt verify`: a plan against the service that runs."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from takt.cli.bench import ProgressBars, report_console
from takt.cli.options import verify_options, with_options
from takt.verify.options import VerifyOptions

ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="Model to serve here; the plan's if not given."),
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
    from takt.bench.results import write_file
    from takt.verify.flags import VerifyFlags
    from takt.verify.report import comparison_report, print_comparison
    from takt.verify.verify import verify

    standard_input = sys.stdin.buffer.read() if options.plan == "-" else b""
    request = VerifyFlags(model, options, standard_input).request()
    with ProgressBars() as on_progress:
        found = verify(request, on_progress)
    writes_to_stdout = options.json == "-"
    print_comparison(found, report_console(writes_to_stdout))
    if options.json is not None:
        content = json.dumps(comparison_report(found), indent=2, allow_nan=False) + "\n"
        if writes_to_stdout:
            sys.stdout.write(content)
        else:
            write_file(options.json, content.encode(), "--json")
    return found.passes
