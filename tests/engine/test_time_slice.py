"""Slices of the calling thread alone, without a privilege."""

from __future__ import annotations

import os
import threading

from takt.engine.time_slice import DEFAULT_SLICE, SHORT_SLICE_NS, set_time_slice


def test_a_slice_is_set_and_set_back_and_nothing_else_changes() -> None:
    found: list[object] = []

    def change() -> None:
        before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        found.append(set_time_slice(SHORT_SLICE_NS) is set_time_slice(DEFAULT_SLICE))
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before)

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert found == [True, True]


def test_a_thread_of_another_policy_is_left_alone() -> None:
    found: list[object] = []

    def change() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        found.append(set_time_slice(SHORT_SLICE_NS))
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert found == [False, os.SCHED_BATCH]
