"""Where the program begins: loading the command line takes long enough to be interrupted."""

from __future__ import annotations


def main() -> None:
    """Runs the command line; interrupted while it is being loaded, it ends without a trace."""
    try:
        from takt.cli.main import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()
