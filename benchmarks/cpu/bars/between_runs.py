"""Time between two runs of the program, as a share of the step."""

from __future__ import annotations

import numpy as np
from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.client import load
from benchmarks.cpu.takt_server import Columns, takt_server
from benchmarks.percentile import percentile

MOST_US = {1: 100.0, 32: 300.0}
"""By streams: the time between two runs that the bar allows."""


def measure(setting: BenchSetting) -> BarResult:
    """In the real server, its HTTP side included: from one run's end to the next one's start."""
    figures, details = [], {}
    for streams in (1, 32):
        with takt_server(setting.model) as server:
            load(
                server.url,
                num_requests=setting.scaled(8, 1) if streams == 1 else streams,
                streams=streams,
                prompt=64,
                output=setting.scaled(256, 64),
            )
            server.stop()
            steps = server.steps()
        share, between_us, outside_us = between(steps, streams)
        name = "1 stream" if streams == 1 else f"{streams} streams"
        figures.append(Figure(name, 100 * share, "% of the step", 8.0, 4.0))
        figures.append(Figure(f"{name}, P50", between_us, "us", MOST_US[streams]))
        details[f"{name}: scheduling and update, P50 us"] = outside_us
    return BarResult(figures, details)


def between(steps: Columns, streams: int) -> tuple[float, float, float]:
    """Median share of the step outside `run`, the same in microseconds, and those of the core.

    Pairs of consecutive steps that both decoded all streams and nothing else.
    """
    is_full = (steps["num_decode_seqs"] == streams) & (steps["num_prefill_tokens"] == 0)
    pairs = is_full[:-1] & is_full[1:]
    if not pairs.any():
        raise RuntimeError(f"no two steps in a row decoded {streams} streams")
    starts, ends = steps["run_start_ns"], steps["run_end_ns"]
    idle = (starts[1:] - ends[:-1])[pairs]
    whole = (starts[1:] - starts[:-1])[pairs]
    outside = (starts - steps["schedule_start_ns"]) + (steps["update_end_ns"] - ends)
    core_us = percentile(outside[is_full].astype(np.float64), 50) / 1e3
    return percentile(idle / whole, 50), percentile(idle.astype(np.float64), 50) / 1e3, core_us
