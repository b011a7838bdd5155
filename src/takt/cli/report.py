"""Where a command's report goes: a console as wide as it needs, and files that flags name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from takt.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


def report_console(file_width: int = 120, *, is_stderr: bool = False) -> Console:
    """A terminal has its own width; in a file or a pipe, lines are at least `file_width` long."""
    from rich.console import Console

    console = Console(highlight=False, stderr=is_stderr)
    if not console.is_terminal:
        console.width = max(console.width, file_width)
    return console


def check_folder(path: Path | None, flag: str) -> None:
    """Raises `ConfigError` if a report could not be written; asked before the work is done."""
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"{flag} {path} cannot be written: there is no folder {path.parent}")


def write_report(path: Path, content: str | bytes, flag: str) -> None:
    """Raises `ConfigError` naming the flag."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from error
