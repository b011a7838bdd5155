"""A comparison as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from takt.bench.quantiles import Quantile
from takt.verify.comparison import Comparison, Outcome, Row
from takt.verify.outside import LeftOut

_LABELS = {"itl": "P99 ITL", "ttft": "P99 TTFT", "e2e": "P99 end to end"}


def print_comparison(found: Comparison, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("ms", "predicted", "band", "measured", "95 %", "difference", "target", ""):
        table.add_column(heading, justify="left" if heading in ("ms", "") else "right")
    for row in found.rows:
        table.add_row(*_cells(row, found))
    console.print(table)
    sent = f"{found.num_requests} requests at {found.offered_per_s:.3g}/s"
    console.print(Text(f"predicted from {found.source}, with the arrivals as they were; {sent}"))
    for other in found.beside:
        again = ", ".join(
            f"{_LABELS[name]} {_ms(band.value)}" for name, band in other.bands.items()
        )
        console.print(Text(f"by {other.source}: {again} ms"))
    if found.left_out is not None:
        for line in _left_out(found.left_out):
            console.print(Text(line))
    if found.num_failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in found.failures.items())
        console.print(Text(f"{found.num_failed} requests failed: {kinds}", style="bold red"))
    if not found.gaps_are_tokens:
        console.print(Text("the server's events are not single tokens: gaps are between chunks"))
    console.print(
        Text("pass", style="bold green") if found.passes else Text("FAIL", style="bold red")
    )


def comparison_report(found: Comparison) -> dict[str, Any]:
    """JSON types only; bounds that do not exist are null. Times in milliseconds."""
    return {
        "passes": found.passes,
        "source": found.source,
        "num_requests": found.num_requests,
        "num_failed": found.num_failed,
        "failures": found.failures,
        "offered_per_s": found.offered_per_s,
        "gaps_are_tokens": found.gaps_are_tokens,
        "beside": [
            {
                "source": other.source,
                "p99_ms": {name: band.value for name, band in other.bands.items()},
            }
            for other in found.beside
        ],
        "left_out": None if found.left_out is None else asdict(found.left_out),
        "p99_ms": {
            row.name: {
                "predicted": row.predicted.value,
                "predicted_low": row.predicted.low,
                "predicted_high": row.predicted.high,
                "measured": row.measured.value,
                "measured_low": row.measured.low,
                "measured_high": row.measured.high,
                "difference": row.difference,
                "target": row.target_ms,
                "outcome": row.outcome.value,
                "meets_target": row.meets_target,
            }
            for row in found.rows
        },
    }


def _left_out(found: LeftOut) -> list[str]:
    low, high = found.slowdown_range
    return [
        f"the machine: steps took {found.slowdown:.2f} times as long under the load as in the "
        f"calibration before it, from {low:.2f} to {high:.2f} over time",
        f"not simulated: P99 ITL between ends of steps {_ms(found.itl_of_steps)} ms; from there to "
        f"the client {_ms(found.way_p50)} ms for first tokens, P99 {_ms(found.way_p99)}; "
        f"{found.cached_share:.1%} of the prompts' tokens cached; {found.coalesced_share:.1%} of "
        f"all tokens in one read with another; correlation of neighbours' residuals "
        f"{found.autocorrelation:.2f}",
    ]


def _cells(row: Row, found: Comparison) -> tuple[str | Text, ...]:
    name = _LABELS[row.name]
    if row.name == "itl" and not found.gaps_are_tokens:
        name = "P99 chunk gap"
    outcome = Text(row.outcome.value, style="red" if row.outcome is Outcome.SLOWER else "")
    if not row.meets_target:
        outcome.append(", TARGET MISSED", style="red")
    return (
        name,
        _ms(row.predicted.value),
        f"{_ms(row.predicted.low)} - {_ms(row.predicted.high)}",
        _ms(row.measured.value),
        _interval(row.measured),
        f"{row.difference:+.1%}",
        "-" if row.target_ms is None else _ms(row.target_ms),
        outcome,
    )


def _interval(measured: Quantile) -> str:
    low = "?" if measured.low is None else _ms(measured.low)
    high = "?" if measured.high is None else _ms(measured.high)
    return f"{low} - {high}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
