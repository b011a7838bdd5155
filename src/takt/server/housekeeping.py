"""What a server does beside its answers: sums of metrics and ledger, and garbage, at quiet moments.

The best moment is right behind the tokens of a step: the next ones take a step's time to come.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from takt.clock import Clock
from takt.engine.garbage import GarbageCollector
from takt.engine.messages import StepStats
from takt.observe.ledger.ledger import Ledger
from takt.observe.run_queue import RunQueueWait, delivering_threads
from takt.server.state import ServerState

PERIOD_SECONDS = 1.0


class Housekeeping:
    """Takes each step's record. Runs on the event loop, and only while steps come."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._collector = GarbageCollector(state.clock)
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._is_started = False
        self._observe_metrics = state.metrics.observe_step
        self._observe_ledger = state.ledger.observe_step
        state.ledger.collections = lambda: list(self._collector.last)
        self._run_queue = RunQueueWait()
        state.ledger.waited_ns = self._run_queue.total_ns
        self._engine_pids: Callable[[], list[int]] = list
        self._watched_pids: list[int] = []

    def start(self, engine_pids: Callable[[], list[int]]) -> None:
        """Loading is over: what is there now stays until the end. Called by the event loop's
        thread; `engine_pids` tells the engines' processes, which may be others later."""
        self._engine_pids = engine_pids
        self._watch_engines()
        _rehearse(self._state.clock)
        self._collector.start()
        self._is_started = True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_started:
            self._collector.stop()
        self._run_queue.close()

    def on_step(self, step: StepStats) -> None:
        self._observe_metrics(step)
        self._observe_ledger(step)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PERIOD_SECONDS, self._on_time)
        elif self._is_due:
            self._is_due = False
            # Twice: the tokens' readers, which are woken now, write in the next turn of the loop.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._work)

    def _on_time(self) -> None:
        if self._state.num_running:
            self._is_due = True
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PERIOD_SECONDS, self._on_time)
            return
        self._timer = None
        self._is_due = False
        self._work()
        if self._is_started:
            self._collector.when_idle()

    def _watch_engines(self) -> None:
        pids = self._engine_pids()
        if pids != self._watched_pids:
            self._watched_pids = pids
            self._run_queue.watch(delivering_threads(threading.get_native_id(), pids))

    def _work(self) -> None:
        self._watch_engines()
        self._state.metrics.settle()
        self._state.ledger.settle()
        self._collector.between_steps()


def _rehearse(clock: Clock) -> None:
    """Settles a ledger of made-up steps: the first time costs 20 ms, spent in numpy's imports."""
    ledger = Ledger(clock)
    for step_id in range(64):
        start_ns = step_id * 2000
        ledger.observe_step(
            StepStats(
                step_id=step_id,
                schedule_start_ns=start_ns,
                run_start_ns=start_ns,
                run_end_ns=start_ns + 1000,
                update_end_ns=start_ns + 1000,
                num_decode_seqs=1,
                num_prefill_tokens=step_id % 2,
                num_kv_tokens_read=1,
                num_qk_pairs=1,
                num_running=1,
                num_waiting=0,
                num_waiting_for_capacity=0,
                kv_blocks_used=1,
                kv_blocks_total=1,
                prefix_cache_queries=0,
                prefix_cache_hits=0,
                num_preempted=0,
                queue_times_ns=[],
                num_redone_tiles=0,
            )
        )
    ledger.gap(1, 2)
    ledger.late_gap("", 0, 1, 0, 1000, 1, 1, 2, 0)
    ledger.settle()
