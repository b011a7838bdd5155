"""A bar for each stage of a measurement, on stderr, gone when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

OnProgress = Callable[[str, int, int], None]
"""Stage, done, total."""


@contextlib.contextmanager
def stage_bars() -> Iterator[OnProgress]:
    """Draws only when told of progress: a drawing thread would take time from the measurement."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    tasks: dict[str, TaskID] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], completed=done)
        if progress.console.is_terminal:
            progress.refresh()

    with progress:
        yield on_progress
