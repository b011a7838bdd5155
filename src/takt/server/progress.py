"""What is seen while a model is fetched and loaded: bars on a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from takt.loading.growth import OnProgress

LINE_SECONDS = 5.0
"""Without a terminal a stage gets a line this often: quick ones get none, slow ones are not
silent."""


@contextlib.contextmanager
def show_progress(
    console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[OnProgress]:
    """Yields what to call with a stage, what is done of it and the total (0: not known)."""
    if not console.is_terminal:
        yield _Lines(console, clock).report
        return
    # Slow to import, and of use on a terminal alone.
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(_words(stage, total), total=None)
            # A total of None makes the bar swing; `update` takes None for "as it was".
            progress.update(
                bars[stage], description=_words(stage, total), completed=done, total=total or None
            )

        yield report


class _Lines:
    """Progress in a log file or a pipe."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._next: dict[str, float] = {}

    def report(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        if now < self._next.setdefault(stage, now + LINE_SECONDS):
            return
        self._next[stage] = now + LINE_SECONDS
        share = f": {100 * done / total:.0f} %" if total else ""
        self._console.print(
            f"takt: {_words(stage, total)}{share}", soft_wrap=True, markup=False, highlight=False
        )


def _words(stage: str, total: int) -> str:
    return f"{stage} ({total / 1e6:,.0f} MB)" if total else stage
