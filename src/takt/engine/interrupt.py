"""Ctrl-C that waits for a step to end, so that it never tears the engine's state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raises `KeyboardInterrupt` at the end of the block if Ctrl-C came inside it.

    Python delivers signals to the main thread alone: in any other this does nothing. A handler
    that somebody else has set for the signal is left in place.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_default:
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
