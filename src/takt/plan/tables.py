"""A plan and a simulation as they are printed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from takt.plan.command_lines import command_notes, takt_command, vllm_command
from takt.plan.search import Plan
from takt.plan.simulate.replicate import Interval
from takt.plan.verdict import Assessment, Verdict
from takt.plan.workload import Targets

_STYLES = {
    Verdict.HOLD: "bold green",
    Verdict.CANDIDATE: "cyan",
    Verdict.LOAD_NO: "bold yellow",
    Verdict.SILICON_NO: "bold red",
    Verdict.PHYSICAL_NO: "bold red",
}
_MAX_SHOWN = 5

_SIMULATED = {
    "ttft_p50_ms": ("TTFT P50", "ms"),
    "ttft_p90_ms": ("TTFT P90", "ms"),
    "ttft_p99_ms": ("TTFT P99", "ms"),
    "itl_p50_ms": ("ITL P50", "ms"),
    "itl_p90_ms": ("ITL P90", "ms"),
    "itl_p99_ms": ("ITL P99", "ms"),
    "e2e_p50_ms": ("end to end P50", "ms"),
    "e2e_p90_ms": ("end to end P90", "ms"),
    "e2e_p99_ms": ("end to end P99", "ms"),
    "requests_per_s": ("requests served", "per s"),
    "mean_running": ("sequences running, mean", ""),
    "busy_share": ("time in steps", "%"),
    "peak_kv_share": ("KV cache in use, peak", "%"),
    "refused_share": ("requests refused", "%"),
    "met_share": ("served within all targets", "%"),
    "num_preemptions": ("preemptions", ""),
}
"""What is printed of a replication: its name there, in words, and the unit."""


def print_plan(plan: Plan, console: Console, *, show_all: bool = False) -> None:
    """The verdict, the best topologies, why others fall, what would help, command lines."""
    best = plan.best
    console.print(_headline(plan))
    console.print(Text(f"binding: {best.constraint.text}"))
    console.print(
        Text(
            f"floors with all {plan.cluster.num_devices} devices on one request, no communication: "
            f"{_ms(plan.floors.token_s)} per token, {_ms(plan.floors.prefill_s)} prefill, "
            f"{_ms(plan.floors.e2e_s)} end to end"
        )
    )
    shown = plan.assessments if show_all else _shown(plan.assessments)
    if best.verdict in (Verdict.PHYSICAL_NO, Verdict.SILICON_NO):
        console.print(_bounds_table(shown))
    else:
        console.print(_load_table(plan, shown))
    _print_others(plan, shown, console)
    if plan.alternatives:
        console.print(_alternatives_table(plan))
    if plan.changes:
        console.print(Text("what would make it hold, cheapest first:", style="bold"))
        for change in plan.changes:
            console.print(Text(f"  {change.kind}: {change.text}"), soft_wrap=True)
    elif best.verdict is not Verdict.HOLD:
        console.print(Text("no change that was tried would make it hold"))
    if best.verdict is Verdict.HOLD:
        _print_commands(plan, console)


def print_simulation(
    columns: Mapping[str, Mapping[str, Interval]],
    console: Console,
    num_replications: int,
    estimate: Mapping[str, float] | None = None,
) -> None:
    """One column of figures per variant, each with its interval; the closed forms' beside."""
    table = Table("", *columns, box=box.SIMPLE_HEAD)
    if estimate is not None:
        table.add_column("closed forms")
    for name in next(iter(columns.values())):
        label, unit = _SIMULATED[name]
        factor = 100.0 if unit == "%" else 1.0
        cells = [_interval(found[name], factor) for found in columns.values()]
        if estimate is not None:
            cells.append(f"{factor * estimate[name]:.4g}" if name in estimate else "")
        table.add_row(f"{label}, {unit}" if unit else label, *cells)
    console.print(table)
    console.print(Text(f"means of {num_replications} replications; half widths of 95 % intervals"))


def _headline(plan: Plan) -> Text:
    workload = plan.workload
    text = Text(plan.verdict.value, style=_STYLES[plan.verdict])
    text.append(
        f"  {plan.model.name} on {plan.cluster.label}, {plan.precision.label}, "
        f"{workload.prompt_tokens} in / {workload.output_tokens} out, "
        f"{workload.requests_per_s:g} requests/s; {_targets(plan.targets)}",
        style="none",
    )
    return text


def _targets(targets: Targets) -> str:
    named = (("ITL", targets.itl_s), ("TTFT", targets.ttft_s), ("end to end", targets.e2e_s))
    return "P99 " + ", ".join(f"{name} {_ms(v)}" for name, v in named if v is not None)


def _shown(assessments: list[Assessment]) -> list[Assessment]:
    """The best few; for hard noes one of each (TP, PP), since replicas change nothing."""
    found: list[Assessment] = []
    seen: set[tuple[int, int]] = set()
    hard = assessments[0].verdict in (Verdict.PHYSICAL_NO, Verdict.SILICON_NO)
    for assessment in assessments:
        key = (assessment.topology.tp, assessment.topology.pp)
        if hard and key in seen:
            continue
        seen.add(key)
        found.append(assessment)
    return found if hard else found[:_MAX_SHOWN]


def _bounds_table(shown: list[Assessment]) -> Table:
    table = _table("weight read", "token, bound", "e2e, bound", "alone", "KV")
    for a in shown:
        alone = _ms(a.alone.itl_s) if a.alone is not None else "-"
        table.add_row(
            _degrees(a),
            Text(a.verdict.value, style=_STYLES[a.verdict]),
            _ms(a.bounds.weight_read_s),
            _ms(a.bounds.token_with_latency_s),
            _ms(a.bounds.e2e_with_latency_s),
            alone,
            _count(a.memory.num_kv_tokens),
        )
    return table


def _load_table(plan: Plan, shown: list[Assessment]) -> Table:
    table = _table("ITL ms", "TTFT ms", "e2e ms", "room", "batch", "step", "GB", "KV", "kW")
    for a in shown:
        p99 = a.predicted
        batch = a.load.batch if a.load is not None else None
        devices = a.topology.num_devices
        table.add_row(
            _degrees(a),
            Text(a.verdict.value, style=_STYLES[a.verdict]),
            *([_plain(t) for t in (p99.itl_s, p99.ttft_s, p99.e2e_s)] if p99 else ["-"] * 3),
            f"{a.margin:+.0%}" if math.isfinite(a.ratio) else "-",
            f"{batch.mean_batch:.1f}" if batch else "-",
            str(a.limits.max_num_batched_tokens) if a.limits else "-",
            f"{a.memory.weights_bytes / 1e9:.1f}",
            _count(a.memory.num_kv_tokens),
            f"{devices * plan.cluster.accelerator.power_w / 1e3:.1f}",
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("TPxPPxDP", no_wrap=True, min_width=8)
    table.add_column("verdict", no_wrap=True, min_width=11)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _degrees(assessment: Assessment) -> str:
    topology = assessment.topology
    return f"{topology.tp}x{topology.pp}x{topology.dp}"


def _count(tokens: int) -> str:
    if tokens >= 1_000_000:
        return f"{tokens / 1e6:.1f}M"
    return f"{tokens / 1e3:.0f}k" if tokens >= 1000 else str(max(0, tokens))


def _print_others(plan: Plan, shown: list[Assessment], console: Console) -> None:
    kept = {id(a) for a in shown}
    by_reason: dict[tuple[str, str], list[Assessment]] = {}
    for a in plan.assessments:
        if id(a) not in kept:
            by_reason.setdefault((a.verdict.value, a.constraint.name), []).append(a)
    for (verdict, _), members in by_reason.items():
        labels = ", ".join(a.topology.label for a in members[:_MAX_SHOWN])
        more = f" and {len(members) - _MAX_SHOWN} more" if len(members) > _MAX_SHOWN else ""
        console.print(
            Text(f"{verdict}: {labels}{more}; {members[0].constraint.text}", style="dim"),
            soft_wrap=True,
        )


def _alternatives_table(plan: Plan) -> Table:
    table = Table("precision", "best topology", "verdict", "binding", box=box.SIMPLE_HEAD)
    for a in plan.alternatives:
        table.add_row(
            a.precision.label,
            a.topology.label,
            Text(a.verdict.value, style=_STYLES[a.verdict]),
            a.constraint.text,
        )
    return table


def _print_commands(plan: Plan, console: Console) -> None:
    for note in command_notes(plan.best):
        console.print(Text(note))
    for command in (
        takt_command(plan.model, plan.best, plan.workload),
        vllm_command(plan.model, plan.best, plan.workload),
    ):
        console.print(Text(command), soft_wrap=True)


def _interval(found: Interval, factor: float) -> str:
    half = factor * (found.high - found.mean)
    spread = "" if math.isnan(half) else f" ± {half:.2g}"
    return f"{factor * found.mean:.4g}{spread}"


def _plain(seconds: float) -> str:
    """Milliseconds without their unit."""
    return f"{seconds * 1e3:,.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def _ms(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
