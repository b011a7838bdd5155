"""What a server does beside its answers: the ledger's sums and garbage, at quiet moments."""

from __future__ import annotations

import asyncio

from takt.engine.garbage import GarbageCollector
from takt.engine.messages import StepStats
from takt.server.state import ServerState

TICK_SECONDS = 0.25


class Housekeeping:
    """Takes each step's record. Runs on the event loop, and only while steps come."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._collector = GarbageCollector(state.clock)
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self._observe_metrics = state.metrics.observe_step
        self._observe_ledger = state.ledger.observe_step
        state.ledger.collections = lambda: list(self._collector.last)

    def start(self) -> None:
        """Loading is over: what is there now stays until the end."""
        self._collector.start()
        self._is_started = True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_started:
            self._collector.stop()

    def on_step(self, step: StepStats) -> None:
        self._observe_metrics(step)
        self._observe_ledger(step)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._state.ledger.settle()
        if self._state.num_running:
            self._collector.between_steps()
        elif self._is_started:
            self._collector.when_idle()
