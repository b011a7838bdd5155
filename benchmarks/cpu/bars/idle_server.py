"""Processor time of a server that has nothing to do."""

from __future__ import annotations

import time

from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.client import load
from benchmarks.cpu.takt_server import takt_server

SETTLE_SECONDS = 2.0


def measure(setting: BenchSetting) -> BarResult:
    """After it has served; CPU time of all its processes over some seconds."""
    seconds = float(setting.scaled(20, 4))
    with takt_server(setting.model) as server:
        load(server.url, num_requests=2, prompt=64, output=16)
        time.sleep(SETTLE_SECONDS)
        before_s = server.cpu_s()
        time.sleep(seconds)
        used_s = server.cpu_s() - before_s
    return BarResult(
        [Figure("CPU", 100 * used_s / seconds, "% of one core", 1.0)],
        {"CPU s of start and warm-up": before_s},
    )
