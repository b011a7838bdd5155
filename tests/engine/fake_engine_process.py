"""An engine process around the fake model; `config.model.model` says how it behaves.

`fake` serves. `fake:die-after=N` kills itself inside its Nth step, `fake:die-at-start` before it is
ready, `fake:refuse` cannot start for a reason the user must mend, and `fake:raise` for one of our
own. `fake:gather=N` makes no step before N requests have come, `fake:hold=FILE` no more than the
number in the file (one, if it is empty) while that exists: commands are taken meanwhile, so that
what a test sends is there in time however slow it is. `fake:sleep=MS` makes each step last.
`fake:late` takes 3 ms a step and 0.3 ms for each prompt token, and collects garbage for 30 ms
before every 30th step. Several stand with commas between them: `fake:gather=2,hold=FILE`.
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
from takt.engine.messages import AddRequest
from takt.engine.process import OnProgress, main
from takt.errors import ConfigError
from takt.types.step import StepInput

HELD_SECONDS = 0.005


def make_core(config: EngineConfig, clock: Clock, on_progress: OnProgress) -> EngineCore:
    words = config.model.model.removeprefix("fake").removeprefix(":").split(",")
    behaviour = {name: value for name, _, value in (word.partition("=") for word in words)}
    steps = itertools.count(1)

    def before_step(step: StepInput) -> None:
        if next(steps) == int(behaviour.get("die-after", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(int(behaviour.get("sleep", 0)) / 1000)
        if "late" in behaviour:
            time.sleep(0.003 + 0.0003 * (step.num_tokens - step.num_seqs))

    if "die-at-start" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    if "refuse" in behaviour:
        raise ConfigError("--max-model-len 9 is wrong")
    if "raise" in behaviour:
        raise ZeroDivisionError("a fault of ours")
    on_progress("Loading", 1, 1)
    core: Any = build_core(config, fake_model(window=WINDOW, before_step=before_step), clock)
    if "late" in behaviour:
        core = Littering(core)
    if "hold" in behaviour or "gather" in behaviour:
        core = Held(core, Path(behaviour.get("hold", "/nowhere")), int(behaviour.get("gather", 0)))
    return core  # type: ignore[no-any-return]


class Held:
    """A core that makes a step only when it may, and takes requests and aborts at any time."""

    def __init__(self, core: EngineCore, limit: Path, num_awaited: int) -> None:
        self._core = core
        self._limit = limit
        self._num_awaited = num_awaited
        self._num_steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def add(self, request: AddRequest) -> None:
        self._num_awaited -= 1
        self._core.add(request)

    def step(self, on_start: Callable[[], None]) -> StepResult:
        if self._may_step():
            self._num_steps += 1
            return self._core.step(on_start)
        on_start()  # what the step before brought
        if aborts := self._core._take_outputs():
            return StepResult(aborts, None)
        time.sleep(HELD_SECONDS)
        return StepResult([], None, is_plain=True)

    def _may_step(self) -> bool:
        try:
            return self._num_awaited <= 0 and self._num_steps < int(self._limit.read_text() or 1)
        except FileNotFoundError:
            return self._num_awaited <= 0


class Littering:
    """A core whose process has to collect garbage now and then, and takes its time over it."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._heap: list[list[int]] = []
        self._steps = itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, on_start: Callable[[], None]) -> StepResult:
        if not self._heap:
            self._heap = [[] for _ in range(200_000)]
        if next(self._steps) % 30 == 0:
            on_start()  # what is to be sent is not to wait for it
            end = time.monotonic() + 0.03
            while time.monotonic() < end:
                gc.collect()
        return self._core.step(on_start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make_core))
