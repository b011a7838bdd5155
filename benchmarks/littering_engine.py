"""An engine process that is made to collect garbage over a large heap, and notes when.

`python littering_engine.py serve MODEL ...` is `takt serve` with such an engine.
While the file $TAKT_LITTER exists, a collection is forced between two steps every half second, and
its begin and end are appended to $TAKT_LITTER.log (two int64 each, monotonic nanoseconds).
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from takt.clock import Clock
from takt.config import EngineConfig
from takt.engine.core import EngineCore, StepResult
from takt.engine.process import OnProgress, main

PERIOD_S = 0.5
NUM_LISTS = 600_000


class Littering:
    """A core that forces collections between its steps."""

    def __init__(self, core: EngineCore, flag: Path) -> None:
        self._core = core
        self._flag = flag
        self._heap: list[list[int]] = []
        self._next_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, on_start: Callable[[], None]) -> StepResult:
        if not self._heap:
            self._heap = [[] for _ in range(NUM_LISTS)]
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PERIOD_S
            if self._flag.exists():
                on_start()  # what is to be sent is not to wait for it
                self._collect()
        return self._core.step(on_start)

    def _collect(self) -> None:
        begin = time.monotonic_ns()
        gc.collect()
        with self._flag.with_suffix(".log").open("ab") as log:
            np.array([begin, time.monotonic_ns()], dtype=np.int64).tofile(log)


def make_core(config: EngineConfig, clock: Clock, on_progress: OnProgress) -> EngineCore:
    from takt.engine.build import build_core
    from takt.engine.load import load_model

    core = build_core(config, load_model(config, on_progress), clock)
    return Littering(core, Path(os.environ["TAKT_LITTER"]))  # type: ignore[return-value]


def serve() -> None:
    from takt.cli.main import main as takt
    from takt.engine.proc_client import ProcessEngineClient
    from takt.server import serve as serving

    command = (sys.executable, __file__)
    client = functools.partial(ProcessEngineClient, command=command)
    serving.ProcessEngineClient = client  # type: ignore[misc,assignment]
    takt(sys.argv[1:])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    sys.exit(main(sys.argv[1:], make_core))
