"""Bars against other engines, from the results of `python -m benchmarks.peers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.cpu.bar import BarResult, BenchSetting, Figure
from benchmarks.cpu.native_programs import num_cpus, vnni_peak

from takt.bench.results import machine_name

HOW = "run `make bench-peers` first"
FAST_LOOP_MS = 2.2
OPERATIONS_PER_TOKEN = 2 * 134_515_008
"""Two per weight of SmolLM2-135M, the head included; attention is not counted."""


def one_stream(setting: BenchSetting) -> BarResult:
    """ITL over HTTP against llama.cpp in its own process, without HTTP."""
    results = _results(setting)
    if isinstance(results, str):
        return BarResult.not_measured(results)
    takt, other = (results["engines"].get(name) for name in ("takt", "llama.cpp"))
    if takt is None or other is None:
        return BarResult.not_measured(f"llama.cpp was not measured beside takt: {HOW}")
    ours, theirs = takt["one_stream"], other["one_stream"]
    figures = [
        Figure("P50 / P50", ours["p50_ms"] / theirs["p50_ms"], "x", 0.55, 0.45),
        Figure("P99 / P99", ours["p99_ms"] / theirs["p99_ms"], "x", 0.60, 0.45),
    ]
    details = {
        "takt P50 ms": ours["p50_ms"],
        "takt P99 ms": ours["p99_ms"],
        "llama.cpp P50 ms": theirs["p50_ms"],
        "llama.cpp P99 ms": theirs["p99_ms"],
        "loop P50 ms": results["loop_p50_ms"],
    }
    notes = [f"llama.cpp: {other['settings']}", _when(results)]
    if results["loop_p50_ms"] > FAST_LOOP_MS:
        notes.append(f"the bar is for a loop of at most {FAST_LOOP_MS} ms")
    return BarResult(figures, details, notes)


def prefill(setting: BenchSetting) -> BarResult:
    return _against_best(setting, "prefill", "tokens_per_s", 1.25, 1.6)


def many_streams(setting: BenchSetting) -> BarResult:
    """Total tokens per second at 32 streams, and its share of the multiplier's peak."""
    result = _against_best(setting, "many_streams", "total_tokens_per_s", 1.6, 2.0)
    if result.missing is not None:
        return result
    peak = vnni_peak(num_cpus(), setting.scaled(10, 3) / 10)
    if peak > 0:
        rate = result.details["takt tokens_per_s"]
        result.details["share of the multiplier's peak, %"] = (
            100 * rate * OPERATIONS_PER_TOKEN / peak
        )
    return result


def _against_best(
    setting: BenchSetting, part: str, measure: str, bar: float, goal: float
) -> BarResult:
    results = _results(setting)
    if isinstance(results, str):
        return BarResult.not_measured(results)
    rates = {name: engine[part][measure] for name, engine in results["engines"].items()}
    ours = rates.pop("takt", None)
    if ours is None or not rates:
        return BarResult.not_measured(f"no peer was measured beside takt: {HOW}")
    best = max(rates, key=lambda name: rates[name])
    details = {"takt tokens_per_s": ours}
    details |= {f"{name} tokens_per_s": rate for name, rate in rates.items()}
    notes = [f"best peer: {best}, {results['engines'][best]['settings']}", _when(results)]
    return BarResult(
        [Figure(f"takt / {best}", ours / rates[best], "x", bar, goal, is_floor=True)],
        details,
        notes,
    )


def _results(setting: BenchSetting) -> dict[str, Any] | str:
    """The results, or why they cannot be used."""
    path = Path(setting.peers_results)
    if not path.exists():
        return f"{path} is not there: {HOW}"
    results: dict[str, Any] = json.loads(path.read_text())
    if results["machine"] != machine_name():
        return f"{path} is of another machine, {results['machine']}: {HOW}"
    return results


def _when(results: dict[str, Any]) -> str:
    quick = " (--quick: too few samples to judge)" if results["is_quick"] else ""
    return f"measured {results['finished']} at commit {results['commit']}{quick}"
