"""An engine process around the fake model; `config.model.model` says how it behaves.

`fake` serves. `fake:die-after=N` kills itself inside its Nth step, `fake:die-at-start` before it is
ready, `fake:refuse` cannot start for a reason the user must mend, and `fake:raise` for one of our
own. `fake:sleep=MS` makes each step last, `fake:hold=FILE` lets each but the first wait while the
file exists. `fake:late` takes 3 ms a step and 0.3 ms for each prompt token, and collects garbage
over a large heap before every 30th step.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_model import WINDOW, fake_model

from takt.clock import Clock
from takt.config import EngineConfig
from takt.engine.build import build_core
from takt.engine.core import EngineCore, StepResult
from takt.engine.process import OnProgress, main
from takt.errors import ConfigError
from takt.types.step import StepInput


def make_core(config: EngineConfig, clock: Clock, on_progress: OnProgress) -> EngineCore:
    behaviour, _, value = config.model.model.removeprefix("fake").removeprefix(":").partition("=")
    steps = itertools.count(1)

    def before_step(step: StepInput) -> None:
        number = next(steps)
        if behaviour == "die-after" and number == int(value):
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "sleep":
            time.sleep(int(value) / 1000)
        while behaviour == "hold" and number > 1 and Path(value).exists():
            time.sleep(0.002)
        if behaviour == "late":
            time.sleep(0.003 + 0.0003 * (step.num_tokens - step.num_seqs))

    if behaviour == "die-at-start":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "refuse":
        raise ConfigError("--max-model-len 9 is wrong")
    if behaviour == "raise":
        raise ZeroDivisionError("a fault of ours")
    on_progress("Loading", 1, 1)
    core = build_core(config, fake_model(window=WINDOW, before_step=before_step), clock)
    return Littering(core) if behaviour == "late" else core  # type: ignore[return-value]


class Littering:
    """A core whose process has to collect garbage now and then, and has much to look at."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._heap: list[list[int]] = []
        self._steps = itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, on_start: Callable[[], None]) -> StepResult:
        if not self._heap:
            self._heap = [[] for _ in range(800_000)]
        if next(self._steps) % 30 == 0:
            on_start()  # what is to be sent is not to wait for it
            gc.collect()
        return self._core.step(on_start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make_core))
