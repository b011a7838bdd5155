"""A step's time as nested bars: the whole step, its layers, their instructions."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from takt.observe.profile_tables import Peaks, ProfileTable, profile_tables, summary
from takt.observe.step_profile import StepProfile

_WIDTH, _LEFT, _BAR_HEIGHT, _TOP = 1180, 16, 30, 56
_LEAST_TEXT_WIDTH = 34
_INK = "#1f2430"
_HOST, _RUN, _LAYER = "#c9cdd6", "#9db7d5", ("#dbe6f2", "#c7d8ea")
_KINDS = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2",
    "#eeca3b", "#b279a2", "#ff9da6", "#9d755d", "#8a8a8a",
    "#2f4b7c", "#a05195", "#665191",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Bar:
    name: str
    start_us: float
    length_us: float
    colour: str


def profile_svg(profile: StepProfile, title: str) -> str:
    """Means of all steps; a bar's width is its time. Hovering over a bar names it."""
    rows = _rows(profile)
    whole = max(bar.start_us + bar.length_us for row in rows for bar in row)
    scale = (_WIDTH - 2 * _LEFT) / whole
    legend = _legend(profile)
    bars_height = len(rows) * (_BAR_HEIGHT + 3)
    height = _TOP + bars_height + 20 * (1 + len(legend) // 6) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{html.escape(title)}</text>',
        f'<text x="{_LEFT}" y="44">{html.escape(summary(profile))}; the bars are means</text>',
    ]
    for index, row in enumerate(rows):
        y = _TOP + index * (_BAR_HEIGHT + 3)
        parts += [_rectangle(bar, scale, y) for bar in row]
    for index, (name, colour) in enumerate(legend.items()):
        x = _LEFT + (index % 6) * (_WIDTH - 2 * _LEFT) / 6
        y = _TOP + bars_height + 16 + 20 * (index // 6)
        parts.append(f'<rect x="{x:.0f}" y="{y - 9}" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def profile_html(
    profiles: Sequence[tuple[str, StepProfile]], peaks: Sequence[Peaks | None], title: str
) -> str:
    """A page without scripts: a chart and tables for each profile."""
    sections = []
    for (name, profile), peak in zip(profiles, peaks, strict=True):
        sections.append(f"<h2>{html.escape(name)}</h2>{profile_svg(profile, name)}")
        sections += [_html_table(table) for table in profile_tables(profile, peak)]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        "<style>body{font-family:sans-serif;max-width:76em;margin:2em auto}"
        "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;"
        "border-bottom:1px solid #d9dce3}td:first-child,th:first-child{text-align:left}</style>"
        f"<body><h1>{html.escape(title)}</h1>{''.join(sections)}</body></html>\n"
    )


def _rows(profile: StepProfile) -> list[list[_Bar]]:
    host = {name: float(values.mean()) for name, values in profile.host_us().items()}
    before = host["schedule and fill"] + host["copy the input"]
    run = float(profile.run_us.mean())
    whole = [
        _Bar("schedule and fill", 0.0, host["schedule and fill"], _HOST),
        _Bar("copy the input", host["schedule and fill"], host["copy the input"], _HOST),
        _Bar("instructions", before, run, _RUN),
        _Bar("write the output", before + run, host["write the output"], _HOST),
        _Bar(
            "read and update",
            before + run + host["write the output"],
            host["read and update"],
            _HOST,
        ),
    ]
    colours = _legend(profile)
    at = before
    layers: list[_Bar] = []
    instructions: list[_Bar] = []
    for label, span in profile.mean_spans_us():
        place = f"layer {label.layer}" if label.layer is not None else ""
        if place and layers and layers[-1].name == place:
            last = layers[-1]
            layers[-1] = _Bar(place, last.start_us, at + span - last.start_us, last.colour)
        elif place:
            layers.append(_Bar(place, at, span, _LAYER[len(layers) % 2]))
        name = f"{label.kind}, {place}" if place else label.kind
        instructions.append(_Bar(name, at, span, colours[label.kind]))
        at += span
    return [whole, layers, instructions]


def _legend(profile: StepProfile) -> dict[str, str]:
    """Colours of the kinds, the longest first."""
    return {row.name: _KINDS[i % len(_KINDS)] for i, row in enumerate(profile.kinds())}


def _rectangle(bar: _Bar, scale: float, y: float) -> str:
    x, width = _LEFT + bar.start_us * scale, bar.length_us * scale
    name = html.escape(bar.name)
    text = ""
    if width >= max(_LEAST_TEXT_WIDTH, 6.2 * len(bar.name)):
        text = f'<text x="{x + 3:.1f}" y="{y + 19:.0f}">{name}</text>'
    return (
        f"<g><title>{name}: {bar.length_us:.1f} us</title>"
        f'<rect x="{x:.2f}" y="{y:.0f}" width="{max(width, 0.05):.2f}" height="{_BAR_HEIGHT}" '
        f'fill="{bar.colour}" stroke="white" stroke-width="0.4"/>{text}</g>'
    )


def _html_table(table: ProfileTable) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    return f"<h3>{html.escape(table.title)}</h3><table>{row(table.headings, 'th')}{body}</table>"
