"""The contract's bars, measured and judged, in parts.

    python -m benchmarks.contract [PART ...] [--continue] [--quick] [--capacity PER_S]

Tells first what it will take. Each part is judged and written when it is measured; after an end in
between, --continue measures what is missing. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
from benchmarks.contract.cost import sentence, total_s
from benchmarks.contract.parts import PARTS, Part
from benchmarks.contract.report import page, picture, table
from benchmarks.contract.results import FILE, Results
from benchmarks.contract.session import Session
from benchmarks.cpu.__main__ import commit
from benchmarks.cpu.bar import BarResult, Verdict
from rich.console import Console

from takt.bench.results import machine_name

ROOT = Path(__file__).parent.parent.parent
TITLES = {key: part.title for key, part in PARTS.items()}


def main() -> int:
    options = _read_arguments()
    # Ended from outside, it still ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    session = Session(options.model, options.quick, options.capacity)
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    folder = Path(options.out)
    setting = {
        "machine": machine_name(),
        "model": session.model,
        "commit": commit(),
        "quick": session.is_quick,
    }
    kept = Results(folder / FILE, setting)
    results: dict[str, BarResult] = {}
    for key in options.parts or PARTS:
        earlier = kept.read(key) if options.goes_on else None
        if earlier is not None:
            console.print(f"{PARTS[key].title}: measured at {kept.when(key)}", markup=False)
            results[key] = earlier
    missing = {key: PARTS[key] for key in options.parts or PARTS if key not in results}
    _tell_cost(console, session, missing)
    for key, part in missing.items():
        console.print(f"{part.title}: {sentence(part.runs(session))}", markup=False)
        results[key] = result = _measure(part, session)
        kept.add(key, part.title, result, session.__dict__.get("capacity"))
        console.print(table(part.title, TITLES, {key: result}))
        if "mixed" in session.__dict__:
            np.savez_compressed(folder / "contract_steps.npz", **session.mixed.steps)
    title = f"The contract: {setting['machine']}, {session.model}, commit {setting['commit']}"
    results = {key: results[key] for key in PARTS if key in results}
    _print_all(console, title, results, session)
    (folder / "contract.html").write_text(page(title, TITLES, results, session))
    console.print(f"written to {folder}/{FILE} and contract.html", markup=False)
    if (svg := picture(session)) is not None:
        (folder / "mixed_load.svg").write_text(svg)
        console.print(f"gaps under the mixed load: {folder}/mixed_load.svg", markup=False)
    if "mixed" in session.__dict__:
        console.print(f"steps of the mixed load: {folder}/contract_steps.npz", markup=False)
    missed = any(f.verdict is Verdict.MISSED for r in results.values() for f in r.figures)
    return 1 if missed or any(result.missing for result in results.values()) else 0


def _tell_cost(console: Console, session: Session, parts: dict[str, Part]) -> None:
    """Runs that parts share count once."""
    runs = {run.name: run for part in parts.values() for run in part.runs(session)}
    minutes = total_s(list(runs.values())) / 60
    console.print(f"{len(parts)} parts, about {minutes:.0f} min in all", markup=False)


def _print_all(
    console: Console, title: str, results: dict[str, BarResult], session: Session
) -> None:
    if len(results) > 1:
        console.print(table(title, TITLES, results))
    if "capacity" in session.__dict__:
        console.print(f"capacity: {session.capacity:.4g} requests per s", markup=False)
    for key, result in results.items():
        for name, value in result.details.items():
            console.print(f"{key}: {name} {value:.4g}", markup=False)
        for note in result.notes:
            console.print(f"{key}: {note}", markup=False)
    if session.is_quick:
        console.print("--quick: few samples; the verdicts say nothing about the engine")


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contract", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--continue",
        dest="goes_on",
        action="store_true",
        help="leave out what is measured already: of this commit, model and machine",
    )
    parser.add_argument("--quick", action="store_true", help="few samples: no verdict to rely on")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--capacity", type=float, metavar="PER_S", help="requests a second, as an earlier run found"
    )
    parser.add_argument("--out", default=str(ROOT / "build" / "bench"))
    options = parser.parse_args()
    if unknown := [key for key in options.parts if key not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return options


def _measure(part: Part, session: Session) -> BarResult:
    """One that fails is reported as such, and the others still run."""
    try:
        return part.measure(session)
    except Exception as error:
        traceback.print_exc()
        return BarResult.not_measured(f"{type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    sys.exit(main())
