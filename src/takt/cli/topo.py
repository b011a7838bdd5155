"""`takt topo`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from takt.cli.report import check_folder, report_console, write_report
from takt.cli.stage_bars import stage_bars
from takt.errors import ConfigError

if TYPE_CHECKING:
    from takt.parallel.topology.graph import Topology
    from takt.parallel.topology.report import PlacementReport

_FILE_WIDTH = 160


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="topo")(topo)


def topo(
    source: Annotated[
        str | None,
        typer.Option("--from", help="Text of `nvidia-smi topo -m` from a file; - for stdin."),
    ] = None,
    cpus: Annotated[
        bool, typer.Option("--cpus", help="Show the CPUs' L3 domains, whatever else there is.")
    ] = False,
    tensor_parallel_size: Annotated[
        int | None, typer.Option("--tensor-parallel-size", "-tp", help="Ranks of a group.")
    ] = None,
    pipeline_parallel_size: Annotated[
        int, typer.Option("--pipeline-parallel-size", "-pp", help="Stages of a replica.")
    ] = 1,
    ranks: Annotated[
        bool,
        typer.Option("--ranks", help="Show the CPUs that ranks of -tp and -pp would get here."),
    ] = False,
    num_threads: Annotated[
        int | None, typer.Option(help="Threads of each rank, with --ranks; an equal share if not.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure this CPU's peaks, for takt plan and profile."),
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the graph with the first grouping shown.")
    ] = None,
) -> None:
    """Show how devices are linked, and the groups of ranks that suit the links best.

    Without --from: NVML, else nvidia-smi, else the PCIe tree, else the CPUs' L3 caches.
    """
    names_devices = source is not None or cpus or svg is not None
    if measure:
        if ranks or names_devices or num_threads or tensor_parallel_size is not None:
            raise ConfigError("--measure measures this CPU and takes --json alone")
        _measure(as_json)
        return
    if ranks:
        if names_devices:
            raise ConfigError("--ranks is about this machine's CPUs, without --from, --cpus, --svg")
        from takt.cli.topo_ranks import show_ranks

        show_ranks(
            1 if tensor_parallel_size is None else tensor_parallel_size,
            pipeline_parallel_size,
            num_threads,
            as_json=as_json,
            console=report_console(_FILE_WIDTH),
        )
        return
    if num_threads is not None:
        raise ConfigError("--num-threads goes with --ranks")
    check_folder(svg, "--svg")
    topology = _topology(source, cpus)
    _show(topology, _reports(topology, tensor_parallel_size, pipeline_parallel_size), as_json, svg)


def _show(
    topology: Topology, reports: list[PlacementReport], as_json: bool, svg: Path | None
) -> None:
    from takt.parallel.topology.report import print_placements, print_topology, topology_json
    from takt.parallel.topology.svg import topology_svg

    if as_json:
        document = {
            "topology": topology_json(topology),
            "placements": [report.as_json() for report in reports],
        }
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        console = report_console(_FILE_WIDTH)
        print_topology(topology, console)
        print_placements(reports, console)
    if svg is not None:
        write_report(svg, topology_svg(topology, reports[0].placement), "--svg")


def _topology(source: str | None, cpus: bool) -> Topology:
    from takt.parallel.cpu_topology import read_cpu_topology
    from takt.parallel.topology.cpus import cpu_device_topology
    from takt.parallel.topology.discover import discover_topology, topology_from_file

    if cpus:
        if source is not None:
            raise ConfigError("--cpus and --from name two sources; give one of them")
        return cpu_device_topology(read_cpu_topology())
    return discover_topology() if source is None else topology_from_file(source)


def _reports(topology: Topology, tp: int | None, pp: int) -> list[PlacementReport]:
    """The sizes that were asked for, or every power of two that divides the devices."""
    from takt.parallel.topology.pipelines import place_ranks
    from takt.parallel.topology.report import PlacementReport

    bandwidths = topology.bandwidths()
    count = topology.num_devices
    fitting = [n for n in (2, 4, 8, 16) if n <= count and count % (n * max(pp, 1)) == 0]
    sizes = [tp] if tp is not None else fitting or [1]
    return [
        PlacementReport.of(topology, size, pp, place_ranks(bandwidths, size, pp)) for size in sizes
    ]


def _measure(as_json: bool) -> None:
    from takt.ops.native.measure import measure_machine
    from takt.plan.machine_table import print_figures
    from takt.plan.this_machine import check_writable, write_figures

    check_writable()
    with stage_bars() as on_progress:
        figures = measure_machine(on_progress)
    path = write_figures(figures)
    if as_json:
        sys.stdout.write(json.dumps(asdict(figures), indent=2, allow_nan=False) + "\n")
    else:
        console = report_console(_FILE_WIDTH)
        print_figures(figures, console)
        console.print(f"written to {path}: takt plan --hardware {path.stem} uses it")
