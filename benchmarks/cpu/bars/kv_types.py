"""KV caches of half the bytes: what they give at a long context."""

from __future__ import annotations

from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.client import gaps_ms, load
from benchmarks.cpu.takt_server import takt_server
from benchmarks.percentile import percentile


def measure(setting: BenchSetting) -> BarResult:
    medians = []
    for dtype in ("bfloat16", "fp8", "int8"):
        with takt_server(setting.model, ["--kv-cache-dtype", dtype]) as server:
            result = load(server.url, num_requests=setting.scaled(4, 1), prompt=4032)
        medians.append(percentile(gaps_ms([result]), 50))
    return BarResult(
        [
            Figure("ITL P50, fp8 / bf16", medians[1] / medians[0], "x", 1.0),
            Figure("ITL P50, int8 / bf16", medians[2] / medians[0], "x", 1.0),
        ],
        {"bf16 ms": medians[0], "fp8 ms": medians[1], "int8 ms": medians[2]},
    )
