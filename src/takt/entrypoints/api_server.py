"""`python -m takt.entrypoints.api_server --model ...`: `takt serve` at vLLM's module path."""

from __future__ import annotations

import sys

from takt.cli.main import main as run_command_line


def main(arguments: list[str] | None = None) -> None:
    run_command_line(["serve", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
