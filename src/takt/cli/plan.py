"""`takt plan`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from takt.cli.report import check_folder, write_report
from takt.cli.stage_bars import stage_bars
from takt.errors import ConfigError
from takt.plan.simulate_options import KV_DTYPE_HELP

if TYPE_CHECKING:
    from takt.plan.search import Plan, PlanRequest

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Alias such as llama-3-8b, a config.json, its directory, or a GGUF."
    ),
]
Hardware = Annotated[str, typer.Option(help="Number and kind of devices, such as 16xA100-80G.")]
HardwareFile = Annotated[
    Path | None, typer.Option(help="TOML file that describes a further device.")
]
Isl = Annotated[int, typer.Option(help="Mean tokens of a prompt.")]
Osl = Annotated[int, typer.Option(help="Mean tokens of an output.")]
IslVariation = Annotated[float, typer.Option(help="Coefficient of variation; 0 is a fixed length.")]
Dtype = Annotated[
    str,
    typer.Option(help="Weights: fp16, fp8, int8, int4, packed (as in a GGUF); auto if not given."),
]
KvDtype = Annotated[str, typer.Option(help=KV_DTYPE_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Degree = Annotated[int | None, typer.Option(help="Fixes a degree; searched if not given.")]

NO_EXIT_CODE = 1
"""Of `takt plan` when nothing holds; mistakes in what is asked end with 2."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="plan")(plan)


def plan(
    model: Model,
    qps: Annotated[float, typer.Option(help="Requests per second, Poisson.")],
    hardware: Hardware = "1xH200",
    hardware_file: HardwareFile = None,
    isl: Isl = 512,
    osl: Osl = 128,
    isl_variation: IslVariation = 0.0,
    osl_variation: IslVariation = 0.0,
    slo_itl_p99_ms: Annotated[float | None, typer.Option(help="P99 of gaps.")] = None,
    slo_ttft_p99_ms: Annotated[float | None, typer.Option(help="P99 to the first token.")] = None,
    slo_e2e_p99_ms: Annotated[float | None, typer.Option(help="P99 to the last token.")] = None,
    dtype: Dtype = "auto",
    kv_cache_dtype: KvDtype = "auto",
    also_dtype: Annotated[
        list[str] | None,
        typer.Option(help="Further weights to show as alternatives, with the same KV cache."),
    ] = None,
    tensor_parallel_size: Degree = None,
    pipeline_parallel_size: Degree = None,
    data_parallel_size: Degree = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every topology.")] = False,
    as_json: Json = False,
    chart: Annotated[Path | None, typer.Option(help="Write a .svg or .html chart.")] = None,
) -> None:
    """Work backwards from P99 targets to a topology, or to the limit that forbids them."""
    from takt.plan.hardware import parse_cluster
    from takt.plan.model_data import find_model
    from takt.plan.precision import precision_for
    from takt.plan.report import plan_report
    from takt.plan.search import PlanRequest
    from takt.plan.tables import print_plan
    from takt.plan.topology import Pinned
    from takt.plan.verdict import Verdict
    from takt.plan.workload import Targets, Workload

    _check_chart(chart)
    shape = find_model(model)
    precision = precision_for(shape, dtype, kv_cache_dtype)
    request = PlanRequest(
        model=shape,
        cluster=parse_cluster(hardware, hardware_file),
        precision=precision,
        workload=Workload(isl, osl, qps, isl_variation, osl_variation),
        targets=Targets.from_ms(slo_itl_p99_ms, slo_ttft_p99_ms, slo_e2e_p99_ms),
        pinned=Pinned(tensor_parallel_size, pipeline_parallel_size, data_parallel_size),
        other_precisions=[
            precision_for(shape, name, precision.kv_dtype) for name in also_dtype or []
        ],
    )
    made = _make_plan(request)
    if as_json:
        sys.stdout.write(json.dumps(plan_report(made), indent=2, allow_nan=False) + "\n")
    else:
        print_plan(made, Console(highlight=False), show_all=show_all)
    if chart is not None:
        _draw(made, chart)
    if made.verdict is not Verdict.HOLD:
        raise typer.Exit(NO_EXIT_CODE)


def _make_plan(request: PlanRequest) -> Plan:
    from takt.plan.search import make_plan

    with stage_bars() as on_progress:
        return make_plan(request, on_progress)


def _draw(made: Plan, chart: Path) -> None:
    from takt.plan.chart import plan_html, plan_svg

    text = plan_svg(made) if chart.suffix == ".svg" else plan_html(made)
    write_report(chart, text, "--chart")


def _check_chart(chart: Path | None) -> None:
    if chart is not None and chart.suffix not in (".svg", ".html"):
        raise ConfigError(f"--chart {chart} ends with neither .svg nor .html; name one of them")
    check_folder(chart, "--chart")
