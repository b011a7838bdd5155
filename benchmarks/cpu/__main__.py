"""The bars of the CPU engine, measured and judged.

    python -m benchmarks.cpu [BAR ...] [--quick] [--model MODEL] [--json FILE]

Bars are named by their keys (`--list`). Exits with 1 if one that was measured is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from benchmarks.cpu.bar import Bar, BarResult, BenchSetting, Verdict
from benchmarks.cpu.bars import (
    between_runs,
    busy_neighbour,
    cold_start,
    gemm,
    idle_server,
    kv_types,
    long_context,
    model_quality,
    one_stream,
    peers,
    profile,
)
from rich.console import Console
from rich.table import Table

from takt.bench.results import machine_name

ROOT = Path(__file__).parent.parent.parent

BARS: dict[str, Bar] = {
    "one-stream": Bar("1 stream over HTTP, 400 in / 128 out", one_stream.measure),
    "one-stream-peer": Bar("1 stream against llama.cpp in process", peers.one_stream),
    "between-runs": Bar("time between two runs", between_runs.measure),
    "prefill": Bar("prefill of 512 tokens against the best peer", peers.prefill),
    "many-streams": Bar("32 streams, tokens/s against the best peer", peers.many_streams),
    "gemm": Bar("products at 256 rows, Q4_1", gemm.measure),
    "busy-neighbour": Bar("8 streams beside a busy process", busy_neighbour.measure),
    "long-context": Bar("context 4,096 against 464", long_context.measure),
    "quality": Bar("perplexity of the default", model_quality.measure),
    "idle": Bar("idle server", idle_server.measure),
    "cold-start": Bar("cold takt generate", cold_start.measure),
    "kv-types": Bar("types of KV cache", kv_types.measure),
    "profile": Bar("takt profile", profile.measure),
}


def main() -> int:
    options = _read_arguments()
    # Ended from outside, it still ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.list:
        for key, bar in BARS.items():
            print(f"{key:16} {bar.title}")
        return 0
    setting = BenchSetting(options.model, options.quick, options.peers_results)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    results: dict[str, BarResult] = {}
    for key in options.bars or BARS:
        console.print(f"[dim]{BARS[key].title} ...[/]")
        results[key] = _measure(BARS[key], setting)
    _print(console, results, setting)
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(results, setting), indent=2) + "\n")
    console.print(f"written to {path}")
    missed = any(f.verdict is Verdict.MISSED for r in results.values() for f in r.figures)
    return 1 if missed else 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("bars", nargs="*", metavar="BAR", help="all if none is named")
    parser.add_argument("--list", action="store_true", help="the names of the bars")
    parser.add_argument("--quick", action="store_true", help="few samples: no verdict to rely on")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", default=str(ROOT / "build" / "bench" / "cpu.json"))
    parser.add_argument("--peers-results", default=str(ROOT / "build" / "bench" / "peers.json"))
    options = parser.parse_args()
    if unknown := [key for key in options.bars if key not in BARS]:
        parser.error(f"no such bar: {', '.join(unknown)}; there are {', '.join(BARS)}")
    return options


def _measure(bar: Bar, setting: BenchSetting) -> BarResult:
    """A bar that fails is reported as such, and the others still run."""
    try:
        return bar.measure(setting)
    except Exception as error:
        traceback.print_exc()
        return BarResult.not_measured(f"{type(error).__name__}: {str(error)[:300]}")


def _print(console: Console, results: dict[str, BarResult], setting: BenchSetting) -> None:
    table = Table(title=f"{machine_name()}, {setting.model}, commit {commit()}")
    for name in ("what", "figure", "measured", "bar", "goal", "verdict"):
        table.add_column(name)
    for key, result in results.items():
        title = BARS[key].title
        if result.missing is not None:
            table.add_row(title, "", "", "", "", result.missing.value)
        for figure in result.figures:
            sign = ">=" if figure.is_floor else "<="
            goal = "" if figure.goal is None else f"{sign} {figure.goal:g}"
            measured = f"{figure.value:.3g} {figure.unit}"
            bound = f"{sign} {figure.bar:g}"
            table.add_row(title, figure.name, measured, bound, goal, figure.verdict.value)
            title = ""
    console.print(table)
    for key, result in results.items():
        details = ", ".join(f"{name} {value:.4g}" for name, value in result.details.items())
        for line in [details, *result.notes]:
            if line:
                console.print(f"{key}: {line}", markup=False)
    if setting.is_quick:
        console.print("--quick: few samples; the verdicts say nothing about the engine")


def _document(results: dict[str, BarResult], setting: BenchSetting) -> dict[str, object]:
    bars = {
        key: {
            "title": BARS[key].title,
            "figures": [
                {**dataclasses.asdict(f), "verdict": f.verdict.value} for f in result.figures
            ],
            "details": result.details,
            "notes": result.notes,
            "missing": result.missing.value if result.missing else None,
        }
        for key, result in results.items()
    }
    return {
        "machine": machine_name(),
        "commit": commit(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": setting.model,
        "is_quick": setting.is_quick,
        "bars": bars,
    }


def commit() -> str:
    """The commit of the working tree, with a + if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
