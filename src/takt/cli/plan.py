"""`takt plan` and `takt simulate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from takt.cli.report import check_folder, write_report
from takt.cli.stage_bars import stage_bars
from takt.errors import ConfigError

if TYPE_CHECKING:
    from takt.plan.search import Plan, PlanRequest
    from takt.plan.simulate.replicate import Interval
    from takt.plan.simulation_request import SimulationRequest

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
KvDtype = Annotated[str, typer.Option(help="KV cache: auto (16 bits), fp8 or int8.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Degree = Annotated[int | None, typer.Option(help="Fixes a degree; searched if not given.")]
Seed = Annotated[int, typer.Option(help="Makes a run repeatable.")]

NO_EXIT_CODE = 1
"""Of `takt plan` when nothing holds; mistakes in what is asked end with 2."""


def register(app: typer.Typer) -> None:
    """Adds both commands."""
    app.command(name="plan")(plan)
    app.command(name="simulate")(simulate)


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
        list[str] | None, typer.Option(help="Further precisions to show as alternatives.")
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
    from takt.plan.precision import parse_precision, precision_for
    from takt.plan.report import plan_report
    from takt.plan.search import PlanRequest
    from takt.plan.tables import print_plan
    from takt.plan.topology import Pinned
    from takt.plan.verdict import Verdict
    from takt.plan.workload import Targets, Workload

    _check_chart(chart)
    others = [parse_precision(name, kv_cache_dtype) for name in also_dtype or []]
    shape = find_model(model)
    request = PlanRequest(
        model=shape,
        cluster=parse_cluster(hardware, hardware_file),
        precision=precision_for(shape, dtype, kv_cache_dtype),
        workload=Workload(isl, osl, qps, isl_variation, osl_variation),
        targets=Targets.from_ms(slo_itl_p99_ms, slo_ttft_p99_ms, slo_e2e_p99_ms),
        pinned=Pinned(tensor_parallel_size, pipeline_parallel_size, data_parallel_size),
        other_precisions=others,
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


def simulate(
    model: Model,
    qps: Annotated[float | None, typer.Option(help="Requests per second, Poisson.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="JSON lines, or a table as Azure's or BurstGPT's.")
    ] = None,
    rate_factor: Annotated[float, typer.Option(help="Replay a trace so many times as fast.")] = 1.0,
    hardware: Hardware = "1xH200",
    hardware_file: HardwareFile = None,
    isl: Isl = 512,
    osl: Osl = 128,
    isl_variation: IslVariation = 0.0,
    osl_variation: IslVariation = 0.0,
    dtype: Dtype = "auto",
    kv_cache_dtype: KvDtype = "auto",
    tensor_parallel_size: Annotated[int, typer.Option(help="Ranks that share each matrix.")] = 1,
    pipeline_parallel_size: Annotated[int, typer.Option(help="Stages that share the layers.")] = 1,
    data_parallel_size: Annotated[int, typer.Option(help="Replicas that share the requests.")] = 1,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences in one step.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step.")] = 512,
    kv_reservation: Annotated[str, typer.Option(help="full or optimistic.")] = "full",
    policy: Annotated[
        str, typer.Option(help="fcfs, priority, pace, or auto: pace if a target is given.")
    ] = "auto",
    slo_itl_p99_ms: Annotated[float | None, typer.Option(help="Target of the P99 of gaps.")] = None,
    slo_ttft_p99_ms: Annotated[
        float | None, typer.Option(help="Target of the P99 to the first token.")
    ] = None,
    admission: Annotated[
        str, typer.Option(help="queue, or refuse: who would miss a target is not served.")
    ] = "queue",
    kv_io: Annotated[
        str, typer.Option(help="Each prompt's KV comes from the host: none, sync, async or both.")
    ] = "none",
    num_requests: Annotated[int, typer.Option(help="Requests of each replication.")] = 2000,
    replications: Annotated[int, typer.Option(help="Independent repetitions.")] = 8,
    step_noise: Annotated[float, typer.Option(help="Coefficient of variation of steps.")] = 0.05,
    num_processes: Annotated[int | None, typer.Option(help="All CPUs if not given.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Serve a load on a virtual clock with the engine's own scheduler."""
    from takt.plan.simulation_request import SimulationRequest

    request = SimulationRequest(
        model=model,
        hardware=hardware,
        hardware_file=hardware_file,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_reservation=kv_reservation,
        kv_io=kv_io,
        policy=policy,
        slo_itl_p99_ms=slo_itl_p99_ms,
        slo_ttft_p99_ms=slo_ttft_p99_ms,
        admission=admission,
        requests_per_s=qps,
        trace=trace,
        rate_factor=rate_factor,
        prompt_tokens=isl,
        output_tokens=osl,
        prompt_variation=isl_variation,
        output_variation=osl_variation,
        num_requests=num_requests,
        step_noise=step_noise,
        seed=seed,
    )
    _simulate(request, replications, num_processes, as_json)


def _make_plan(request: PlanRequest) -> Plan:
    from takt.plan.search import make_plan

    with stage_bars() as on_progress:
        return make_plan(request, on_progress)


def _draw(made: Plan, chart: Path) -> None:
    from takt.plan.chart import plan_html, plan_svg

    text = plan_svg(made) if chart.suffix == ".svg" else plan_html(made)
    write_report(chart, text, "--chart")


def _simulate(
    request: SimulationRequest, replications: int, num_processes: int | None, as_json: bool
) -> None:
    from takt.plan.tables import print_simulation

    found = _run(request, replications, num_processes)
    if as_json:
        report = _simulation_report(request, found, replications)
        sys.stdout.write(json.dumps(report, indent=2, allow_nan=False) + "\n")
    else:
        print_simulation(found, Console(highlight=False), replications, request.estimate())


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


def _simulation_report(
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


def _check_chart(chart: Path | None) -> None:
    if chart is not None and chart.suffix not in (".svg", ".html"):
        raise ConfigError(f"--chart {chart} ends with neither .svg nor .html; name one of them")
    check_folder(chart, "--chart")
