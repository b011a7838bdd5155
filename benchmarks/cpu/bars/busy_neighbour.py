"""Gaps of eight streams beside a busy process on one core, against a quiet machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.client import decode_gaps_ms, load
from benchmarks.cpu.takt_server import takt_server
from benchmarks.percentile import percentile

STREAMS = 8


def measure(setting: BenchSetting) -> BarResult:
    """Quiet and busy slices alternate on one server."""
    quiet, busy = [], []
    with takt_server(setting.model) as server:
        for _ in range(setting.scaled(4, 1)):
            for gaps, is_busy in ((quiet, False), (busy, True)):
                with busy_process(is_busy):
                    result = load(server.url, num_requests=STREAMS, streams=STREAMS)
                gaps.append(decode_gaps_ms(result))
    quiet_p99 = percentile(np.concatenate(quiet), 99)
    busy_p99 = percentile(np.concatenate(busy), 99)
    return BarResult(
        [Figure("P99 busy / quiet", busy_p99 / quiet_p99, "x", 2.0, 1.6)],
        {
            "quiet P99 ms": quiet_p99,
            "busy P99 ms": busy_p99,
            "largest busy gap ms": float(np.concatenate(busy).max()),
        },
    )


@contextmanager
def busy_process(is_busy: bool) -> Iterator[None]:
    """A process that computes without pause, pinned to the last CPU of ours."""
    if not is_busy:
        yield
        return
    cpu = max(os.sched_getaffinity(0))
    program = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield
        finally:
            process.kill()
