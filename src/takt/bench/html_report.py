"""A report as one HTML file: no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from takt.bench.load import LoadRun
from takt.bench.plots import Values, scatter_plot, step_plot, tail_plot
from takt.bench.report_rows import LATENCY_HEADER, fact_rows, latency_rows, warnings
from takt.bench.request_times import RequestTimes, request_times
from takt.bench.results import Setting
from takt.bench.summary import Summary

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2em auto; padding: 0 1em;
       color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .7em; text-align: right;
       border-bottom: 1px solid #ddd } td:first-child, th:first-child { text-align: left }
.facts td { text-align: left } .warning { color: #a40 } svg { width: 100%; height: auto }
svg text { font-size: 11px; fill: #555 } .grid { stroke: #eee } .mark { stroke: #bbb;
       stroke-dasharray: 3 3 } .line { fill: none; stroke: #15616d; stroke-width: 1.6 }
circle { fill: #15616d; fill-opacity: .45 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 }
       td, th { border-color: #333 } svg text { fill: #aaa } .grid { stroke: #2a2a2a }
       .line { stroke: #6cc } circle { fill: #6cc } .warning { color: #fa6 } }
"""


def html_report(setting: Setting, summary: Summary, run: LoadRun) -> bytes:
    """The report of a run, plots included where there are samples."""
    title = escape(str(setting.options["label"] or f"{setting.model} at {setting.url}"))
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1>",
        _table(LATENCY_HEADER, latency_rows(summary)),
        "<p>[95 %]: confidence interval of P99, from order statistics; ? is a side that so few "
        "samples do not bound.</p>",
        _table((), fact_rows(summary), kind="facts"),
        *(f'<p class="warning">{escape(text)}</p>' for text in warnings(summary)),
        *_plots(summary, run),
        "<h2>Setting</h2>",
        _table((), _setting_rows(setting), kind="facts"),
    ]
    return "\n".join(parts).encode() + b"\n"


def _plots(summary: Summary, run: LoadRun) -> list[str]:
    times = [request_times(record) for record in run.records if record.is_ok]
    if not times:
        return []
    start_ns = min(record.planned_ns for record in run.records)
    sent_s = _seconds([t.record.planned_ns for t in times], start_ns)
    ttft_ms = np.array([t.ttft_ms for t in times])
    parts = ["<h2>TTFT over time</h2>", scatter_plot(sent_s, ttft_ms, "TTFT")]
    gap_ms = np.concatenate([t.gaps_ms for t in times])
    if len(gap_ms):
        unit = "chunk gap" if summary.granularity == "chunk" else "ITL"
        stamps_ns = np.concatenate([t.tokens.stamps_ns[1:] for t in times])
        parts += [f"<h2>Tail of {unit}</h2>", tail_plot(gap_ms, unit)]
        gap_times_s = (stamps_ns - start_ns) / 1e9
        parts += [f"<h2>{unit} over time</h2>", scatter_plot(gap_times_s, gap_ms, unit)]
    change_s, running = _running(times, start_ns)
    return [*parts, "<h2>Requests in flight</h2>", step_plot(change_s, running, "requests")]


def _running(times: Sequence[RequestTimes], start_ns: int) -> tuple[Values, Values]:
    """Times of change and the number of unfinished requests after each."""
    begins = [(t.record.planned_ns, 1) for t in times]
    ends = [(int(t.tokens.stamps_ns[-1]), -1) for t in times]
    changes = sorted(begins + ends)
    counts = np.cumsum([change for _, change in changes]).astype(np.float64)
    return _seconds([at for at, _ in changes], start_ns), counts


def _seconds(stamps_ns: Sequence[int], start_ns: int) -> Values:
    return (np.array(stamps_ns, dtype=np.int64) - start_ns) / 1e9


def _setting_rows(setting: Setting) -> list[tuple[str, str]]:
    rows = [
        ("server", f"{setting.server or 'unknown'} at {setting.url}"),
        ("model", setting.model),
        ("client's machine", setting.machine),
        ("started", setting.started),
        ("prompt lengths", "exact" if setting.has_exact_prompts else "about: no /tokenize"),
    ]
    shown = {
        k: v for k, v in setting.options.items() if v not in (None, "", (), []) and k != "label"
    }
    return rows + [(name, str(value)) for name, value in shown.items()]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "latencies") -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="{kind}"><tr>{head}</tr>{body}</table>'
