"""An engine process around the fake model; `config.model.model` says how it behaves.

`fake` serves. `fake:die-after=N` kills itself inside its Nth step, `fake:die-at-start` before it is
ready, `fake:refuse` cannot start for a reason the user must mend, `fake:raise` for one of our own,
and `fake:sleep=MS` makes each step last.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time

from fake_model import WINDOW, fake_model

from takt.clock import Clock
from takt.config import EngineConfig
from takt.engine.build import build_core
from takt.engine.core import EngineCore
from takt.engine.process import OnProgress, main
from takt.errors import ConfigError
from takt.types.step import StepInput


def make_core(config: EngineConfig, clock: Clock, on_progress: OnProgress) -> EngineCore:
    behaviour, _, value = config.model.model.removeprefix("fake").removeprefix(":").partition("=")
    steps = itertools.count(1)

    def before_step(step: StepInput) -> None:
        if behaviour == "die-after" and next(steps) == int(value):
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "sleep":
            time.sleep(int(value) / 1000)

    if behaviour == "die-at-start":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "refuse":
        raise ConfigError("--max-model-len 9 is wrong")
    if behaviour == "raise":
        raise ZeroDivisionError("a fault of ours")
    on_progress("Loading", 1, 1)
    return build_core(config, fake_model(window=WINDOW, before_step=before_step), clock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make_core))
