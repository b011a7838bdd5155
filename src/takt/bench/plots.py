"""Plots as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 16, 12, 40
_MAX_POINTS = 4000
"""More are thinned: a browser draws no more than it has pixels."""

_LINE_POINTS = 800
"""Likewise of a line."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """Places values between two pixels; on a logarithmic axis both ends are above 0."""

    label: str
    low: float
    high: float
    start_px: float
    end_px: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high, x = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, x = math.log(low), math.log(high), math.log(x)
        share = (x - low) / (high - low) if high > low else 0.5
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self) -> list[float]:
        if self.is_log:
            first = math.floor(math.log10(self.low))
            last = math.ceil(math.log10(self.high))
            marks = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
            inside = [mark for mark in marks if self.low <= mark <= self.high]
            return inside if len(inside) <= 12 else [t for t in inside if _is_power(t)]
        step = _nice_step((self.high - self.low) / 6)
        first_mark = math.ceil(self.low / step) * step
        return [first_mark + i * step for i in range(8) if first_mark + i * step <= self.high]


def tail_plot(values_ms: Values, unit: str) -> str:
    """Complementary distribution on two logarithmic axes: which share of gaps is longer than x.

    `values_ms` is float64 `[n]`, n >= 1.
    """
    return tails_plot({"": values_ms}, unit)


def tails_plot(values_ms: Mapping[str, Values], unit: str, target_ms: float | None = None) -> str:
    """The same of several samples by name, with a target that they should keep.

    Their lines have the classes `line`, `line line1`, `line line2` and so on.
    """
    samples = {name: np.sort(np.maximum(values, 1e-3)) for name, values in values_ms.items()}
    smallest = min(float(ordered[0]) for ordered in samples.values())
    largest = max([float(ordered[-1]) for ordered in samples.values()] + [target_ms or 0.0])
    x = _x_axis(f"{unit} (ms)", smallest, largest * 1.05, is_log=True)
    lowest = 1 / max(len(ordered) for ordered in samples.values())
    y = _y_axis("share above", min(lowest, 0.1), 1.0, is_log=True)
    parts = [
        f'<line class="mark" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y.at(s):.1f}" '
        f'y2="{y.at(s):.1f}"/><text x="{WIDTH - _RIGHT - 4}" y="{y.at(s) - 3:.1f}" '
        f'text-anchor="end">P{100 * (1 - s):g}</text>'
        for s in (0.5, 0.1, 0.01, 0.001)
        if s >= y.low
    ]
    if target_ms is not None:
        at = f"{x.at(target_ms):.1f}"
        parts.append(
            f'<line class="target" x1="{at}" x2="{at}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
            f'<text x="{x.at(target_ms) + 4:.1f}" y="{_TOP + 34}">'
            f"target {target_ms:.3g} ms</text>"
        )
    for index, (name, ordered) in enumerate(samples.items()):
        kind = "line" if index == 0 else f"line line{index}"
        n = len(ordered)
        points = [(x.at(ordered[i]), y.at(1 - i / n)) for i in _spread(n)]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
        if name:
            px, py = points[-1]
            parts.append(
                f'<text class="{kind}" x="{px - 6:.1f}" y="{py:.1f}" text-anchor="end">'
                f"{escape(name)}</text>"
            )
    return _figure(x, y, parts)


def standalone(svg: str, style: str) -> str:
    """A file of its own, with rules of CSS, on white."""
    head, _, rest = svg.partition(">")
    return (
        f'{head} xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="white"/>{rest}\n'
    )


def scatter_plot(times_s: Values, values_ms: Values, unit: str) -> str:
    """Values over time, both float64 `[n]`, n >= 1; when many, the largest of each stretch stay."""
    high = max(float(values_ms.max()) * 1.1, 1e-3)
    low = max(min(float(values_ms.min()), high / 10), high / 1e4, 1e-4)
    x = _x_axis("time (s)", 0.0, max(float(times_s.max()), 1e-3))
    y = _y_axis(f"{unit} (ms)", low, high, is_log=True)
    dots = [
        f'<circle cx="{x.at(times_s[i]):.1f}" cy="{y.at(values_ms[i]):.1f}" r="1.6"/>'
        for i in _thin(times_s, values_ms)
    ]
    return _figure(x, y, dots)


def step_plot(times_s: Values, counts: Values, unit: str) -> str:
    """A count over time that holds until the next change; float64 `[n]`, n >= 1, times in order."""
    x = _x_axis("time (s)", 0.0, max(float(times_s[-1]), 1e-3))
    y = _y_axis(unit, 0.0, max(float(counts.max()) * 1.1, 1.0))
    points, previous = [], 0.0
    for i in range(len(times_s)):
        px = x.at(times_s[i])
        points += [f"{px:.1f},{y.at(previous):.1f}", f"{px:.1f},{y.at(counts[i]):.1f}"]
        previous = float(counts[i])
    return _figure(x, y, [f'<polyline class="line" points="{" ".join(points)}"/>'])


def _figure(x: Axis, y: Axis, content: Sequence[str]) -> str:
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    base = HEIGHT - _BOTTOM
    for value in x.ticks():
        px = f"{x.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{px}" x2="{px}" y1="{_TOP}" y2="{base}"/>')
        parts.append(f'<text x="{px}" y="{base + 14}" text-anchor="middle">{value:g}</text>')
    for value in y.ticks():
        py = y.at(value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{py:.1f}" y2="{py:.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 5}" y="{py + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.label)}</text>'
        f'<text transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    return "".join([*parts, *content, "</svg>"])


def _x_axis(label: str, low: float, high: float, *, is_log: bool = False) -> Axis:
    return Axis(label, low, high, _LEFT, WIDTH - _RIGHT, is_log)


def _y_axis(label: str, low: float, high: float, *, is_log: bool = False) -> Axis:
    return Axis(label, low, high, HEIGHT - _BOTTOM, _TOP, is_log)


def _spread(n: int) -> list[int]:
    """Indices of a sorted sample, dense in the tail: each decade of rank from the end alike."""
    if n <= _LINE_POINTS:
        return list(range(n))
    ranks = np.unique(np.geomspace(1, n, _LINE_POINTS).astype(np.int64))
    indices: list[int] = (n - ranks[::-1]).tolist()
    return indices


def _thin(times_s: Values, values: Values) -> list[int]:
    """All indices, or of each stretch of time the largest value and one beside it."""
    n = len(values)
    if n <= _MAX_POINTS:
        return list(range(n))
    order = np.argsort(times_s, kind="stable")
    pick: Callable[[npt.NDArray[np.int64]], list[int]] = lambda part: [  # noqa: E731
        int(part[np.argmax(values[part])]),
        int(part[0]),
    ]
    return [i for part in np.array_split(order, _MAX_POINTS // 2) for i in pick(part)]


def _nice_step(rough: float) -> float:
    scale = 10.0 ** math.floor(math.log10(rough))
    return next(m * scale for m in (1, 2, 5, 10) if m * scale >= rough * 0.999)


def _is_power(value: float) -> bool:
    exponent = math.log10(value)
    return abs(exponent - round(exponent)) < 1e-9
