"""A step's profile as tables, for a terminal or a Markdown page, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from takt.observe.step_profile import PartRow, StepProfile


@dataclass(frozen=True, slots=True)
class Peaks:
    """What shares are taken of, as measured on this machine."""

    read_bytes_s: float
    """Of a working set as large as what the step reads."""
    int8_ops_s: float
    int8_instruction: str


@dataclass(frozen=True, slots=True)
class ProfileTable:
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def profile_tables(profile: StepProfile, peaks: Peaks | None) -> list[ProfileTable]:
    return [
        ProfileTable(
            "By kind of instruction",
            _headings("kind", peaks),
            tuple(_cells(row, peaks) for row in [*profile.kinds(), profile.total()]),
        ),
        _host_table(profile),
        ProfileTable(
            "By layer",
            _headings("layer", peaks),
            tuple(_cells(row, peaks) for row in profile.layers()),
        ),
    ]


def profile_json(profile: StepProfile, peaks: Peaks | None) -> dict[str, object]:
    """All figures; rates in bytes and operations per second."""
    return {
        "num_steps": len(profile.steps),
        "num_threads": profile.num_threads,
        "num_redone_tiles": sum(step.num_redone_tiles for step in profile.steps),
        "run_us": _percentiles(profile.run_us),
        "host_us": {name: _percentiles(values) for name, values in profile.host_us().items()},
        "total": _row_json(profile.total()),
        "kinds": [_row_json(row) for row in profile.kinds()],
        "layers": [_row_json(row) for row in profile.layers()],
        "instructions": [
            {"kind": label.kind, "layer": label.layer, "mean_us": mean}
            for label, mean in profile.mean_spans_us()
        ],
        "peaks": None if peaks is None else asdict(peaks),
    }


def markdown_table(table: ProfileTable) -> str:
    lines = [
        "| " + " | ".join(table.headings) + " |",
        "|---" + "|---:" * (len(table.headings) - 1) + "|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in table.rows]
    return "\n".join(lines)


def summary(profile: StepProfile) -> str:
    """One sentence: what ran, and how long."""
    p50, p99 = np.percentile(profile.run_us, [50, 99])
    redone = sum(step.num_redone_tiles for step in profile.steps)
    return (
        f"{len(profile.steps)} steps on {profile.num_threads} threads: P50 {p50 / 1e3:.2f} ms, "
        f"P99 {p99 / 1e3:.2f} ms inside the program; {redone} tiles done again"
    )


def _headings(first: str, peaks: Peaks | None) -> tuple[str, ...]:
    headings = (first, "count", "P50 us", "P99 us", "us a step", "share", "waiting", "MB", "GB/s")
    if peaks is None:
        return (*headings, "GOP/s")
    return (*headings, "of reading", "GOP/s", "of int8 peak")


def _cells(row: PartRow, peaks: Peaks | None) -> tuple[str, ...]:
    cells = [
        row.name,
        str(row.count),
        f"{row.p50_us:.1f}",
        f"{row.p99_us:.1f}",
        f"{row.total_us:.0f}",
        _percent(row.share),
        _percent(row.waiting_share),
        f"{row.num_bytes / 1e6:.2f}" if row.num_bytes else "",
        f"{row.bytes_s / 1e9:.1f}" if row.num_bytes else "",
    ]
    if peaks is not None:
        cells.append(_percent(row.bytes_s / peaks.read_bytes_s) if row.num_bytes else "")
    cells.append(f"{row.ops_s / 1e9:.0f}" if row.num_ops else "")
    if peaks is not None:
        cells.append(_percent(row.ops_s / peaks.int8_ops_s) if row.num_ops else "")
    return tuple(cells)


def _host_table(profile: StepProfile) -> ProfileTable:
    parts = profile.host_us()
    whole = sum(parts.values()) + profile.run_us
    rows = []
    for name, values in [*parts.items(), ("instructions", profile.run_us), ("whole step", whole)]:
        p50, p99 = np.percentile(values, [50, 99])
        share = float(values.mean() / whole.mean())
        rows.append((name, f"{p50:.1f}", f"{p99:.1f}", _percent(share)))
    return ProfileTable(
        "Around the instructions", ("part", "P50 us", "P99 us", "share"), tuple(rows)
    )


def _percentiles(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "mean": float(np.mean(values))}


def _row_json(row: PartRow) -> dict[str, object]:
    return asdict(row) | {"bytes_s": row.bytes_s, "ops_s": row.ops_s}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"
