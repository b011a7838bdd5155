"""`takt profile`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from takt.cli.options import ENGINE_TABLES, engine_config, with_options
from takt.cli.report import check_folder, report_console, write_report
from takt.cli.stage_bars import stage_bars
from takt.config import EngineConfig
from takt.errors import ConfigError

if TYPE_CHECKING:
    from takt.observe.profile_tables import Peaks, ProfileTable
    from takt.observe.step_profile import StepProfile
    from takt.types.machine import MachineFigures

_FILE_WIDTH = 160

Profiles = list[tuple[str, "StepProfile"]]


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What is profiled: `batch_size` decodes at `context`, a prompt of `prefill_tokens`; 0: not."""

    context: int = 464
    batch_size: int = 1
    prefill_tokens: int = 512
    num_steps: int = 100

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--context", self.context, 1),
            ("--batch-size", self.batch_size, 0),
            ("--prefill-tokens", self.prefill_tokens, 0),
            ("--steps", self.num_steps, 1),
        ):
            if value < least:
                raise ConfigError(f"{flag} must be at least {least}, got {value}")
        if not self.batch_size and not self.prefill_tokens:
            raise ConfigError("--batch-size 0 and --prefill-tokens 0 leave nothing to profile")


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    @with_options(ENGINE_TABLES, skip=("model",))
    def profile(
        model: Annotated[
            str, typer.Argument(metavar="MODEL", help="As of takt serve: short name, file, Hub id.")
        ],
        context: Annotated[int, typer.Option(help="Tokens before a decode step.")] = 464,
        batch_size: Annotated[int, typer.Option(help="Decodes in a step; 0: none.")] = 1,
        prefill_tokens: Annotated[
            int, typer.Option(help="Tokens of a prompt in one step; 0: none.")
        ] = 512,
        steps: Annotated[
            int, typer.Option(help="Decode steps; of prompts a tenth of it, three at least.")
        ] = 100,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        html: Annotated[Path | None, typer.Option(help="Write a page with charts.")] = None,
        **options: Any,
    ) -> None:
        """Show where the time of a step goes, instruction by instruction."""
        request = ProfileRequest(context, batch_size, prefill_tokens, steps)
        check_folder(html, "--html")
        _show(engine_config({**options, "model": model}), request, as_json, html)


def run_profile(config: EngineConfig, request: ProfileRequest) -> Profiles:
    """Loads the model and profiles what is asked; one entry for decodes, one for prompts.

    Prefix caching is off, and a step is long enough for the whole prompt. What layers take is kept
    for engines that divide them over stages.
    """
    from takt.clock import MonotonicClock
    from takt.engine.layer_cost_file import layer_cost_path, write_layer_costs
    from takt.engine.load import load_model
    from takt.engine.profile import DecodeShape, PrefillShape, Profiler
    from takt.server.progress import show_progress

    room = max(config.scheduler.max_num_batched_tokens, request.prefill_tokens)
    seats = max(config.scheduler.max_num_seqs, request.batch_size)
    config = replace(
        config,
        cache=replace(config.cache, enable_prefix_caching=False),
        scheduler=replace(config.scheduler, max_num_batched_tokens=room, max_num_seqs=seats),
    )
    with show_progress(Console(stderr=True)) as on_load:
        model = load_model(config, on_load)
    profiler = Profiler(config, model, MonotonicClock())
    found: Profiles = []
    try:
        with stage_bars() as on_progress:
            if request.batch_size:
                shape = DecodeShape(request.batch_size, request.context)
                name = f"Decode: {shape.batch_size} at a context of {shape.context}"
                found.append((name, profiler.decode(shape, request.num_steps, on_progress)))
            if request.prefill_tokens:
                num_steps = max(3, request.num_steps // 10)
                prompt = PrefillShape(request.prefill_tokens)
                name = f"Prefill: {prompt.num_tokens} tokens"
                found.append((name, profiler.prefill(prompt, num_steps, on_progress)))
            costs = profiler.layer_costs(on_progress)
            if costs is not None:
                write_layer_costs(layer_cost_path(config), costs)
    finally:
        profiler.close()
    return found


def peaks_for(profile: StepProfile, figures: MachineFigures | None) -> Peaks | None:
    """What this machine was measured to do; reading, at the size of what the step reads."""
    from takt.observe.profile_tables import Peaks

    if figures is None:
        return None
    int8 = figures.kernel_peak("int8")
    read = figures.read_bytes_s(profile.total().num_bytes)
    return Peaks(read, int8.ops_s, int8.instruction)


def _show(config: EngineConfig, request: ProfileRequest, as_json: bool, html: Path | None) -> None:
    from takt.observe.profile_svg import profile_html
    from takt.observe.profile_tables import profile_json, profile_tables, summary
    from takt.plan.this_machine import read_figures

    figures = read_figures()
    found = run_profile(config, request)
    peaks = [peaks_for(profile, figures) for _, profile in found]
    if as_json:
        document = [
            {"name": name, **profile_json(profile, peak)}
            for (name, profile), peak in zip(found, peaks, strict=True)
        ]
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        console = report_console(_FILE_WIDTH)
        for (name, profile), peak in zip(found, peaks, strict=True):
            console.rule(name)
            console.print(summary(profile), markup=False)
            for table in profile_tables(profile, peak):
                console.print(_rich(table))
            console.print(_peak_line(peak), markup=False)
    if html is not None:
        page = profile_html(found, peaks, f"{config.model.model}: where a step's time goes")
        write_report(html, page, "--html")


def _peak_line(peak: Peaks | None) -> str:
    if peak is None:
        return "no peaks to compare with: run takt topo --measure while the machine is quiet"
    return (
        f"shares are of {peak.read_bytes_s / 1e9:.1f} GB/s read and {peak.int8_ops_s / 1e9:.0f} "
        f"GOP/s of {peak.int8_instruction}, as takt topo --measure found them"
    )


def _rich(table: ProfileTable) -> Table:
    shown = Table(title=table.title)
    for index, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if index else "left")
    for row in table.rows:
        shown.add_row(*row)
    return shown
