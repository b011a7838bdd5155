"""Processor time of the server process per streamed token: event loop, text, JSON, sockets.

    python benchmarks/server_cpu.py [--model smollm2-135m] [--streams 1 32] [--profile]

Read from /proc/PID/stat of the server's process, so the engine's process is not in it, nor is the
client's; it hardly depends on what else the machine does. `--profile` prints where it goes.
"""

from __future__ import annotations

import argparse
import os
import pstats
import sys
import tempfile
from pathlib import Path

from benchmarks.cpu.client import load
from benchmarks.cpu.takt_server import process_tree, takt_server
from rich.console import Console
from rich.table import Table

PROFILE_LINES = 40


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(model: str, streams: int, output: int, arguments: list[str]) -> dict[str, float]:
    """Microseconds per token, of the server and of the engine beside it."""
    with takt_server(model, arguments) as server:
        load(server.url, num_requests=streams, streams=streams, prompt=64, output=16)
        pids = {"server": server.process.pid}
        pids["engine"] = next(p for p in process_tree(server.process.pid) if p != pids["server"])
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        load(server.url, num_requests=streams, streams=streams, prompt=64, output=output)
        num_tokens = streams * output
        return {n: 1e6 * (cpu_s(pid) - before[n]) / num_tokens for n, pid in pids.items()}


def profile(model: str, streams: int, output: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.prof"
        os.environ["TAKT_PROFILE"] = str(path)
        measure(model, streams, output, [])
        del os.environ["TAKT_PROFILE"]
        pstats.Stats(str(path), stream=sys.stdout).sort_stats("tottime").print_stats(PROFILE_LINES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per measurement")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    options = parser.parse_args()
    table = Table("streams", "server us per token", "engine process us per token")
    for streams in options.streams:
        output = min(max(options.tokens // streams, 64), 2048)
        if options.profile:
            profile(options.model, streams, output)
            continue
        result = measure(options.model, streams, output, [])
        table.add_row(str(streams), f"{result['server']:.0f}", f"{result['engine']:.0f}")
    if not options.profile:
        Console().print(table)


if __name__ == "__main__":
    main()
