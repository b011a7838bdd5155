"""ITL at a context of 4,096 tokens against 464, by the ratio of the bytes that are read."""

from __future__ import annotations

from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.client import gaps_ms, load
from benchmarks.cpu.step_bytes import step_bytes
from benchmarks.cpu.takt_server import takt_server
from benchmarks.percentile import percentile

OUTPUT = 128
SHORT, LONG = 464, 4096


def measure(setting: BenchSetting) -> BarResult:
    short, long = [], []
    with takt_server(setting.model) as server:
        for _ in range(setting.scaled(5, 1)):
            short.append(load(server.url, num_requests=2, prompt=SHORT - OUTPUT // 2))
            long.append(load(server.url, num_requests=1, prompt=LONG - OUTPUT // 2))
    short_ms, long_ms = percentile(gaps_ms(short), 50), percentile(gaps_ms(long), 50)
    bytes_ratio = step_bytes(LONG) / step_bytes(SHORT)
    return BarResult(
        [Figure("ITL ratio / bytes ratio", long_ms / short_ms / bytes_ratio, "x", 1.15)],
        {"ITL P50 at 464, ms": short_ms, "at 4096, ms": long_ms, "bytes ratio": bytes_ratio},
    )
