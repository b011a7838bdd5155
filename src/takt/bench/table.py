"""A report for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from takt.bench.report_rows import LATENCY_HEADER, fact_rows, latency_rows, warnings
from takt.bench.results import Setting
from takt.bench.summary import Summary


def print_report(console: Console, setting: Setting, summary: Summary) -> None:
    title = setting.options["label"] or f"{setting.model} at {setting.url}"
    table = Table(title=Text(str(title)), title_justify="left")
    for index, name in enumerate(LATENCY_HEADER):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in latency_rows(summary):
        table.add_row(*row)
    if table.row_count:
        console.print(table)
    facts = Table.grid(padding=(0, 2))
    for name, value in fact_rows(summary):
        facts.add_row(Text(name, style="bold"), Text(value))
    console.print(facts)
    for warning in warnings(summary):
        console.print(Text(f"! {warning}", style="yellow"))
