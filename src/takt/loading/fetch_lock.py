"""One fetch of a model at a time, over all processes of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from takt.loading.growth import OnProgress

_POLL_SECONDS = 0.1


@contextlib.contextmanager
def fetch_lock(path: Path, on_progress: OnProgress | None) -> Iterator[None]:
    """Holds the lock file `path`; the kernel lets go of it if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if on_progress is not None:
                    on_progress("Waiting for another fetch of this model", 0, 0)
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)
