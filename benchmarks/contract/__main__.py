"""The contract's bars, measured and judged.

    python -m benchmarks.contract [BAR ...] [--quick] [--capacity PER_S]

Exits with 1 if a bar that was measured is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.contract.bars import (
    causes,
    goodput,
    mixed_load,
    overload,
    prediction,
    replay,
    scheduler_cost,
)
from benchmarks.contract.report import document, page, table
from benchmarks.contract.session import Session
from benchmarks.cpu.__main__ import commit
from benchmarks.cpu.bar import BarResult, Verdict
from rich.console import Console

from takt.bench.results import machine_name

ROOT = Path(__file__).parent.parent.parent

BARS: dict[str, tuple[str, Callable[[Session], BarResult]]] = {
    "causes": ("causes of late gaps", causes.measure),
    "scheduler": ("schedule and update at 256 running", scheduler_cost.measure),
    "prediction": ("step-time prediction, 70 % of capacity", prediction.measure),
    "mixed": ("mixed load at 70 % of capacity", mixed_load.measure),
    "goodput": ("goodput at the same P99", goodput.measure),
    "overload": ("1.5 x capacity, refuse", overload.measure),
    "replay": ("simulator on the server's arrivals, 85 %", replay.measure),
}


def main() -> int:
    options = _read_arguments()
    # Ended from outside, it still ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    session = Session(options.model, options.quick, options.capacity)
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    titles = {key: title for key, (title, _) in BARS.items()}
    results: dict[str, BarResult] = {}
    for key in options.bars or BARS:
        console.print(f"[dim]{titles[key]} ...[/]")
        results[key] = _measure(BARS[key][1], session)
        console.print(table(titles[key], titles, {key: results[key]}))
    title = f"The contract: {machine_name()}, {session.model}, commit {commit()}"
    if len(results) > 1:
        console.print(table(title, titles, results))
    if "capacity" in session.__dict__:
        console.print(f"capacity: {session.capacity:.4g} requests per s", markup=False)
    for key, result in results.items():
        for name, value in result.details.items():
            console.print(f"{key}: {name} {value:.4g}", markup=False)
        for note in result.notes:
            console.print(f"{key}: {note}", markup=False)
    if session.is_quick:
        console.print("--quick: few samples; the verdicts say nothing about the engine")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contract.json").write_text(
        json.dumps({"title": title, "bars": document(results, titles)}, indent=2) + "\n"
    )
    (folder / "contract.html").write_text(page(title, titles, results, session))
    console.print(f"written to {folder}/contract.json and contract.html")
    if "mixed" in session.__dict__:
        np.savez_compressed(folder / "contract_steps.npz", **session.mixed.steps)
        console.print(f"steps of the mixed load: {folder}/contract_steps.npz")
    missed = any(f.verdict is Verdict.MISSED for r in results.values() for f in r.figures)
    return 1 if missed else 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contract", description=__doc__)
    parser.add_argument("bars", nargs="*", metavar="BAR", help="all if none is named")
    parser.add_argument("--quick", action="store_true", help="few samples: no verdict to rely on")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--capacity", type=float, metavar="PER_S", help="requests a second, as an earlier run found"
    )
    parser.add_argument("--out", default=str(ROOT / "build" / "bench"))
    options = parser.parse_args()
    if unknown := [key for key in options.bars if key not in BARS]:
        parser.error(f"no such bar: {', '.join(unknown)}; there are {', '.join(BARS)}")
    return options


def _measure(measure: Callable[[Session], BarResult], session: Session) -> BarResult:
    """A bar that fails is reported as such, and the others still run."""
    try:
        return measure(session)
    except Exception as error:
        traceback.print_exc()
        return BarResult.not_measured(f"{type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    sys.exit(main())
