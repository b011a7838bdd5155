"""Latency against load as SVG, alone or in an HTML page."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from takt.plan.load_curve import LoadCurve, load_curve
from takt.plan.search import Plan
from takt.plan.verdict import Latencies

_WIDTH, _PANEL_HEIGHT, _TOP = 760, 210, 64
_LEFT, _RIGHT, _GAP = 78, 24, 46
_INK, _LINE, _TARGET, _GRID = "#1f2430", "#1d6fb8", "#c0392b", "#d9dce3"

_PANELS: tuple[tuple[str, str, Callable[[Latencies], float]], ...] = (
    ("P99 ITL, ms", "itl_s", lambda p99: p99.itl_s * 1e3),
    ("P99 TTFT, ms", "ttft_s", lambda p99: p99.ttft_s * 1e3),
    ("P99 end to end, ms", "e2e_s", lambda p99: p99.e2e_s * 1e3),
)


def plan_svg(plan: Plan) -> str:
    """Three panels on logarithmic scales, the targets dashed, the planned load as a line."""
    curve = load_curve(plan)
    height = _TOP + len(_PANELS) * (_PANEL_HEIGHT + _GAP)
    title = f"{plan.model.name} on {plan.cluster.label}, {curve.assessment.topology.label}"
    subtitle = (
        f"{plan.workload.prompt_tokens} in / {plan.workload.output_tokens} out, "
        f"{plan.precision.label}: {plan.verdict.value} at "
        f"{plan.workload.requests_per_s:g} requests/s; estimated"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, title, size=16),
        _text(_LEFT, 44, subtitle),
    ]
    for index, (label, target, value) in enumerate(_PANELS):
        top = _TOP + index * (_PANEL_HEIGHT + _GAP)
        limit = getattr(plan.targets, target)
        parts += _panel(plan, curve, label, value, None if limit is None else limit * 1e3, top)
    return "\n".join([*parts, "</svg>", ""])


def plan_html(plan: Plan) -> str:
    """A page without scripts that holds the chart and the deciding sentence."""
    title = html.escape(f"{plan.model.name} on {plan.cluster.label}: {plan.verdict.value}")
    rows = "".join(f"<li>{html.escape(change.text)}</li>" for change in plan.changes)
    changes = f"<h2>What would make it hold</h2><ol>{rows}</ol>" if rows else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<body style="font-family:sans-serif;max-width:60em;margin:2em auto">'
        f"<h1>{title}</h1><p>{html.escape(plan.best.constraint.text)}</p>{changes}"
        f"{plan_svg(plan)}</body></html>\n"
    )


def _panel(
    plan: Plan,
    curve: LoadCurve,
    label: str,
    value: Callable[[Latencies], float],
    limit: float | None,
    top: float,
) -> list[str]:
    values = [value(p99) for p99 in curve.latencies]
    shown = [v for v in [*values, limit or 0.0] if v > 0]
    parts = [_text(_LEFT, top - 8, label, size=13)]
    if not curve.rates_per_s or not shown:
        return [*parts, _text(_LEFT + 12, top + 24, "no stable load")]
    low, high = _decades(shown)
    widest = max(curve.rates_per_s[-1], plan.workload.requests_per_s) * 1.02

    def x(rate: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * rate / widest

    def y(milliseconds: float) -> float:
        share = (math.log10(milliseconds) - low) / (high - low)
        return top + _PANEL_HEIGHT * (1 - share)

    steps = (1, 2, 5) if high - low <= 2 else (1,)
    for decade in range(low, high + 1):
        for step in steps:
            tick = step * 10.0**decade
            if math.log10(tick) <= high + 1e-9:
                parts.append(_rule(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), _GRID))
                parts.append(_text(_LEFT - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    for tick in _ticks(widest):
        parts.append(_rule(x(tick), top, x(tick), top + _PANEL_HEIGHT, _GRID))
        parts.append(_text(x(tick), top + _PANEL_HEIGHT + 16, f"{tick:g}", anchor="middle"))
    points = " ".join(
        f"{x(rate):.1f},{y(v):.1f}"
        for rate, v in zip(curve.rates_per_s, values, strict=True)
        if v > 0
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    planned = x(plan.workload.requests_per_s)
    parts.append(_rule(planned, top, planned, top + _PANEL_HEIGHT, _INK, dashes="2 3"))
    if limit is not None:
        parts.append(_rule(_LEFT, y(limit), _WIDTH - _RIGHT, y(limit), _TARGET, dashes="6 4"))
        parts.append(_text(_WIDTH - _RIGHT, y(limit) - 4, f"target {limit:g} ms", anchor="end"))
    parts.append(_text(_WIDTH - _RIGHT, top + _PANEL_HEIGHT + 32, "requests/s", anchor="end"))
    return parts


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)) + 1e-9)
    return low, max(high, low + 1)


def _ticks(widest: float) -> list[float]:
    """About six round values from 0 on."""
    raw = widest / 6
    step = 10.0 ** math.floor(math.log10(raw))
    step *= next(m for m in (1, 2, 5, 10) if m * step >= raw)
    return [i * step for i in range(int(widest / step) + 1)]


def _rule(x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "") -> str:
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{style}/>'
    )


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )
