"""Progress of a download whose tool tells none: how much its folder has grown."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

OnProgress = Callable[[str, int, int], None]
"""Called with (stage, bytes done, bytes in all); 0 in all where that is not known."""

_INTERVAL_SECONDS = 0.2


class GrowthWatch:
    """Reports the bytes that appear under `folder` while the block runs, from its own thread."""

    def __init__(
        self, folder: Path, stage: str, num_bytes: int, on_progress: OnProgress | None
    ) -> None:
        self._folder = folder
        self._stage = stage
        self._num_bytes = num_bytes
        self._on_progress = on_progress
        self._before = _folder_bytes(folder)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="takt-fetch-progress", daemon=True)

    def __enter__(self) -> GrowthWatch:
        if self._on_progress is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._on_progress is not None:
            self._thread.join()
            if kind is None:
                self._on_progress(self._stage, self._num_bytes, self._num_bytes)

    def _watch(self) -> None:
        assert self._on_progress is not None
        while not self._done.wait(_INTERVAL_SECONDS):
            grown = max(0, _folder_bytes(self._folder) - self._before)
            done = min(grown, self._num_bytes) if self._num_bytes else grown
            self._on_progress(self._stage, done, self._num_bytes)


def _folder_bytes(folder: Path) -> int:
    """Bytes of all regular files below; files may come and go meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = Path(root, name).lstat()
                total += status.st_size
    return total
