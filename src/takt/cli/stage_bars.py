"""A bar for each stage of a measurement, on stderr, gone when it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

OnProgress = Callable[[str, int, int], None]
"""Stage, done, total."""

_DRAW_SECONDS = 0.25


@contextlib.contextmanager
def stage_bars() -> Iterator[OnProgress]:
    """Draws when told of progress, and no more than four times a second.

    Drawing takes time from what is measured, and so would a thread that draws.
    """
    console = Console(stderr=True)
    if not console.is_interactive:  # where bars cannot be drawn, one ends with an empty line
        yield lambda stage, done, total: None
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
    )
    tasks: dict[str, TaskID] = {}
    next_draw_s = 0.0

    def on_progress(stage: str, done: int, total: int) -> None:
        nonlocal next_draw_s
        is_new = stage not in tasks
        if is_new:
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], completed=done)
        now_s = time.monotonic()
        if is_new or now_s >= next_draw_s:
            next_draw_s = now_s + _DRAW_SECONDS
            progress.refresh()

    with progress:
        yield on_progress
