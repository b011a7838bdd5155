"""`takt simulate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from takt.cli.options import simulate_options, with_options
from takt.cli.stage_bars import stage_bars
from takt.plan.simulate_options import SimulateOptions

if TYPE_CHECKING:
    from takt.plan.simulate.replicate import Interval
    from takt.plan.simulation_request import SimulationRequest

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Alias such as llama-3-8b, a config.json, its directory, or a GGUF."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command `simulate`."""

    @app.command()
    @with_options((SimulateOptions,))
    def simulate(
        model: ModelArgument,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        **options: Any,
    ) -> None:
        """Serve a load on a virtual clock with the engine's own scheduler."""
        _simulate(model, simulate_options(options), as_json)


def _simulate(model: str, options: SimulateOptions, as_json: bool) -> None:
    from takt.plan.tables import print_simulation

    request = options.request(model)
    found = _run(request, options.replications, options.num_processes)
    if as_json:
        report = _report(request, found, options.replications)
        sys.stdout.write(json.dumps(report, indent=2, allow_nan=False) + "\n")
    else:
        console = Console(highlight=False)
        print_simulation(found, console, options.replications, request.estimate())


def _run(
    request: SimulationRequest, replications: int, num_processes: int | None
) -> dict[str, dict[str, Interval]]:
    """Each variant's replications, with a progress bar."""
    from takt.plan.simulate.replicate import run_replications

    experiments = request.experiments()
    found = {}
    with stage_bars() as on_progress:
        for name, experiment in experiments.items():
            found[name] = run_replications(
                experiment,
                replications,
                num_processes=num_processes,
                on_progress=partial(on_progress, f"replications, {name}"),
            )
    return found


def _report(
    request: SimulationRequest, found: dict[str, dict[str, Interval]], replications: int
) -> dict[str, object]:
    def bound(value: float) -> float | None:
        return None if value != value else value

    return {
        "request": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(request).items()},
        "replications": replications,
        "closed_forms": request.estimate(),
        "results": {
            variant: {
                name: {"mean": bound(i.mean), "low": bound(i.low), "high": bound(i.high)}
                for name, i in metrics.items()
            }
            for variant, metrics in found.items()
        },
    }
