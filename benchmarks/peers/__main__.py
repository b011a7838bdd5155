"""Takt and other engines on one workload, in turns, each at the best settings that a sweep finds.

    python -m benchmarks.peers [ENGINE ...] [--quick] [--rounds N] [--model MODEL] [--json FILE]

Engines: takt, llama.cpp, openvino, vllm. Each is installed into an environment of its own under
build/peers. llama.cpp and OpenVINO run in a process without HTTP, Takt and vLLM behind it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.cpu.__main__ import ROOT, commit
from benchmarks.cpu.native_programs import num_cpus, read_loop
from benchmarks.cpu.step_bytes import LOOP_BYTES
from benchmarks.peers import candidates, environments
from benchmarks.peers.candidates import Candidate
from benchmarks.peers.engine import Engine, EngineError, Timeline
from benchmarks.peers.workload import (
    FULL,
    MANY_STREAMS,
    PARTS,
    QUICK,
    SWEEP,
    Prompts,
    Size,
    merit,
    run_part,
    score,
)
from rich.console import Console
from rich.table import Table

from takt.bench.results import machine_name
from takt.loading.hub import resolve_model

ENGINES = ("takt", "llama.cpp", "openvino", "vllm")
ENVIRONMENTS = {
    "llama.cpp": environments.LLAMA_CPP,
    "openvino": environments.OPENVINO,
    "vllm": environments.VLLM,
}
VOCAB_SIZE = 49_152
LOOP_PASSES = 60

Scores = dict[str, dict[str, dict[str, float]]]
"""Figures by engine and part."""


def main() -> int:
    options = _read_arguments()
    # Ended from outside, it still ends its engines, which may be paused.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    prompts = Prompts(options.seed, VOCAB_SIZE)
    best: dict[str, dict[str, Candidate]] = {}
    for name in options.engines or ENGINES:
        try:
            if name in ENVIRONMENTS:
                ENVIRONMENTS[name].install()
            best[name] = _sweep(name, _candidates(name, options), prompts, options.quick, console)
        except (EngineError, RuntimeError) as error:
            console.print(f"{name} is left out: {error}", markup=False)
    scores, loop_ms = _compare(best, prompts, options, console)
    _print(console, scores, best, loop_ms)
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(scores, best, loop_ms, options), indent=2) + "\n")
    console.print(f"written to {path}")
    return 0 if scores else 1


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="all if none is named")
    parser.add_argument("--quick", action="store_true", help="few samples, small sweep")
    parser.add_argument("--rounds", type=int, help="turns of each engine; 5, or 1 if quick")
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file or its alias")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default=str(ROOT / "build" / "bench" / "peers.json"))
    options = parser.parse_args()
    if unknown := [name for name in options.engines if name not in ENGINES]:
        parser.error(f"no such engine: {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    return options


def _candidates(name: str, options: argparse.Namespace) -> list[Candidate]:
    source = Path(resolve_model(options.model).path)
    if name == "takt":
        return candidates.takt(options.model)
    if name == "llama.cpp":
        return candidates.llama_cpp(source, options.quick)
    if name == "openvino":
        return candidates.openvino(source, options.quick)
    return candidates.vllm(source)


def _sweep(
    name: str, tried: list[Candidate], prompts: Prompts, is_quick: bool, console: Console
) -> dict[str, Candidate]:
    """The best candidate of each part, by a short run of all; raises if none runs."""
    if len(tried) == 1:
        return dict.fromkeys(PARTS, tried[0])
    table = Table("settings", "ITL P50 ms", "prefill tok/s", f"{MANY_STREAMS} streams tok/s")
    table.title = f"{name}: sweep"
    merits: dict[str, dict[str, float]] = {part: {} for part in PARTS}
    for candidate in tried:
        cells = dict.fromkeys(PARTS, "-")
        try:
            engine = candidate.start()
        except EngineError as error:
            console.print(f"{name}, {candidate.label}: {error}", markup=False)
            continue
        try:
            for part in candidate.parts:
                size = QUICK if is_quick else SWEEP
                figures = score(part, [run_part(part, engine, prompts, size)])
                merits[part][candidate.label] = merit(part, figures)
                cells[part] = f"{abs(merit(part, figures)):.4g}"
        except EngineError as error:
            console.print(f"{name}, {candidate.label}: {error}", markup=False)
        finally:
            engine.close()
        table.add_row(candidate.label, *(cells[part] for part in PARTS))
    console.print(table)
    by_label = {candidate.label: candidate for candidate in tried}
    if not all(merits.values()):
        raise EngineError("no settings ran all parts")
    return {part: by_label[max(m, key=lambda label: m[label])] for part, m in merits.items()}


def _compare(
    best: dict[str, dict[str, Candidate]],
    prompts: Prompts,
    options: argparse.Namespace,
    console: Console,
) -> tuple[Scores, list[float]]:
    """Rounds of slices: every part, every engine in turn, the read loop between them."""
    slices: dict[str, dict[str, list[list[Timeline]]]] = {
        name: {part: [] for part in PARTS} for name in best
    }
    running: dict[tuple[str, str], Engine] = {}
    loop_ms: list[float] = []
    size = QUICK if options.quick else FULL
    num_rounds = options.rounds or (1 if options.quick else 5)
    try:
        _start_all(best, running, console)
        with read_loop(LOOP_BYTES, num_cpus()) as loop:
            for number in range(num_rounds):
                for part in PARTS:
                    # Each round begins with another engine: none always comes behind the same.
                    order = sorted(best)[number % len(best) :] + sorted(best)[: number % len(best)]
                    for name in order:
                        loop_ms += loop.run(LOOP_PASSES).tolist()
                        engine = running.get((name, best[name][part].label))
                        if engine is not None:
                            slices[name][part].append(_slice(part, engine, prompts, size))
                console.print(f"[dim]round {number + 1} of {num_rounds}[/]")
    finally:
        for engine in running.values():
            engine.resume()
            engine.close()
    scores = {
        name: {part: score(part, done) for part, done in parts.items() if done}
        for name, parts in slices.items()
    }
    return {name: parts for name, parts in scores.items() if len(parts) == len(PARTS)}, loop_ms


def _start_all(
    best: dict[str, dict[str, Candidate]],
    running: dict[tuple[str, str], Engine],
    console: Console,
) -> None:
    """Starts each engine at each of its best settings, and pauses it."""
    for name, by_part in best.items():
        for candidate in dict.fromkeys(by_part.values()):
            try:
                engine = candidate.start()
            except EngineError as error:
                console.print(f"{name}, {candidate.label}: {error}", markup=False)
                continue
            engine.pause()
            running[name, candidate.label] = engine


def _slice(part: str, engine: Engine, prompts: Prompts, size: Size) -> list[Timeline]:
    engine.resume()
    try:
        return run_part(part, engine, prompts, size)
    finally:
        engine.pause()


def _print(
    console: Console,
    scores: Scores,
    best: dict[str, dict[str, Candidate]],
    loop_ms: list[float],
) -> None:
    table = Table(title=f"{machine_name()}, commit {commit()}")
    for header in (
        "engine",
        "1 stream: ITL P50 ms",
        "P99 ms",
        "prefill tok/s",
        f"{MANY_STREAMS} streams: total tok/s",
        "ITL P99 ms",
        "prefix hits",
    ):
        table.add_column(header)
    for name, parts in scores.items():
        one, many = parts["one_stream"], parts["many_streams"]
        table.add_row(
            name,
            f"{one['p50_ms']:.3g}",
            f"{one['p99_ms']:.3g}",
            f"{parts['prefill']['tokens_per_s']:,.0f}",
            f"{many['total_tokens_per_s']:,.0f}",
            f"{many['p99_ms']:.3g}",
            f"{max(one['hit_rate'], many['hit_rate']):.1%}",
        )
    console.print(table)
    for name in scores:
        console.print(f"{name}: {_settings_of(best[name])}", markup=False)
    p50, p99 = np.percentile(loop_ms, [50, 99])
    console.print(f"read loop of {LOOP_BYTES / 1e6:.0f} MB: P50 {p50:.3g} ms, P99 {p99:.3g} ms")


def _settings_of(by_part: dict[str, Candidate]) -> str:
    labels = {candidate.label for candidate in by_part.values()}
    if len(labels) == 1:
        return labels.pop()
    return "; ".join(f"{part}: {candidate.label}" for part, candidate in by_part.items())


def _document(
    scores: Scores,
    best: dict[str, dict[str, Candidate]],
    loop_ms: list[float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    p50, p99 = np.percentile(loop_ms, [50, 99])
    return {
        "machine": machine_name(),
        "commit": commit(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": options.model,
        "is_quick": options.quick,
        "loop_p50_ms": float(p50),
        "loop_p99_ms": float(p99),
        "engines": {
            name: {**parts, "settings": _settings_of(best[name])} for name, parts in scores.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
