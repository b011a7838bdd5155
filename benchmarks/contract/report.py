"""The table as text, JSON and a page with plots."""

from __future__ import annotations

from html import escape

import numpy as np
from benchmarks.contract.session import Session
from benchmarks.contract.steps import durations_ns
from benchmarks.cpu.bar import BarResult
from rich.table import Table

from takt.bench.plots import scatter_plot, standalone, tail_plot, tails_plot

_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:800px;margin:2em auto}
table{border-collapse:collapse}td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd}
"""
_PLOT_STYLE = """
text{font-size:10px;fill:#555}.grid{stroke:#eee}.mark{stroke:#bbb;stroke-dasharray:3}
.target{stroke:#c33;stroke-width:1.5;stroke-dasharray:6 3}
polyline{fill:none;stroke:#06c;stroke-width:1.6}polyline.line1{stroke:#c70}
polyline.line2{stroke:#848}
text.line{fill:#06c;font-size:12px}text.line1{fill:#c70}text.line2{fill:#848}circle{fill:#06c}
"""


def table(title: str, titles: dict[str, str], results: dict[str, BarResult]) -> Table:
    made = Table(title=title)
    for name in ("what", "figure", "measured", "bar", "verdict"):
        made.add_column(name)
    for row in _rows(titles, results):
        made.add_row(*row)
    return made


def page(
    title: str, titles: dict[str, str], results: dict[str, BarResult], session: Session
) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in _rows(titles, results)
    )
    notes = "".join(
        f"<p><b>{escape(titles[key])}</b>: "
        + escape(", ".join(f"{n} {v:.4g}" for n, v in result.details.items()))
        + "".join(f" {escape(note)}" for note in result.notes)
        + "</p>"
        for key, result in results.items()
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{_STYLE}{_PLOT_STYLE}</style>"
        f"<h1>{escape(title)}</h1><table>{rows}</table>{notes}{_plots(session)}"
    )


def _rows(titles: dict[str, str], results: dict[str, BarResult]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key, result in results.items():
        title = titles[key]
        if result.missing is not None:
            rows.append((title, "", "", "", result.missing.value))
        for figure in result.figures:
            sign = ">=" if figure.is_floor else "<="
            measured = f"{figure.value:.4g} {figure.unit}".strip()
            rows.append(
                (title, figure.name, measured, f"{sign} {figure.bar:.4g}", figure.verdict.value)
            )
            title = ""
    return rows


def picture(session: Session) -> str | None:
    """The mixed load's gaps under pace and beside it, as a file; None if it was not measured."""
    if not {"mixed", "beside"} <= session.__dict__.keys():
        return None
    runs = {"pace": session.mixed, **session.beside}
    gaps_ms = {name: served.outcome.gaps()[1] for name, served in runs.items()}
    plot = tails_plot(gaps_ms, "gap between tokens", session.targets.itl_ms)
    return standalone(plot, _PLOT_STYLE)


def _plots(session: Session) -> str:
    """Of the run at 70 % of the capacity, if a bar asked for it."""
    if "mixed" not in session.__dict__:
        return ""
    served = session.mixed
    end_s, gap_ms = served.outcome.gaps()
    if not len(gap_ms):
        return ""
    ratio = durations_ns(served.steps) / np.maximum(served.steps["predicted_ns"], 1)
    begin_s = (served.steps["schedule_start_ns"] - served.steps["schedule_start_ns"][0]) / 1e9
    ttft = [t for t in served.outcome.times if not t.record.is_long]
    planned_s = np.array([(t.record.planned_ns - served.outcome.start_ns) / 1e9 for t in ttft])
    ttft_ms = np.array([t.ttft_ms for t in ttft])
    parts = [
        ("Gaps between tokens: share above", tail_plot(gap_ms, "gap")),
        ("Gaps over time", scatter_plot(end_s, gap_ms, "gap")),
        ("Time to first token, short prompts", scatter_plot(planned_s, ttft_ms, "TTFT")),
        ("Measured / predicted length of steps", scatter_plot(begin_s, ratio, "ratio, not time")),
    ]
    return "".join(f"<h2>{name}</h2>{plot}" for name, plot in parts)
