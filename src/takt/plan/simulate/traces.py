"""Recorded arrivals: JSON lines, and the columns of the public Azure and BurstGPT traces."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
_JSON_NAMES = (
    ("arrival_s", "num_prompt_tokens", "num_output_tokens", 1.0),
    ("timestamp", "input_length", "output_length", 1e-3),
)
"""Ours, in seconds, and the one in use elsewhere, in milliseconds."""


def read_trace(path: Path, *, max_requests: int | None = None) -> list[Arrival]:
    """Arrivals in the order of time, the first at 0; requests without output are left out.

    Raises `PlanInputError` that names file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlanInputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanInputError(f"{path}: is not UTF-8 text: {error.reason}") from error
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    rows = _json_rows(path, lines) if first.lstrip().startswith("{") else _csv_rows(path, lines)
    kept = sorted((row for row in rows if row[2] > 0), key=lambda row: row[0])
    if not kept:
        raise PlanInputError(f"{path}: has no request with output")
    if max_requests is not None:
        kept = kept[:max_requests]
    start = kept[0][0]
    return [Arrival(round((time - start) * 1e9), prompt, out) for time, prompt, out in kept]


def scale_rate(arrivals: list[Arrival], factor: float) -> list[Arrival]:
    """The same requests, `factor` times as fast."""
    if not math.isfinite(factor) or factor <= 0:
        raise PlanInputError(f"the rate's factor must be a number above 0, got {factor}")
    return [a._replace(time_ns=round(a.time_ns / factor)) for a in arrivals]


_Row = tuple[float, int, int]


def _json_rows(path: Path, lines: list[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise _error(path, number, f"is not JSON: {error.msg}") from error
        if not isinstance(fields, dict):
            raise _error(path, number, "is no JSON object")
        names = next((n for n in _JSON_NAMES if n[0] in fields), _JSON_NAMES[0])
        time, prompt, output, unit = names
        yield (
            _number(path, number, time, fields.get(time)) * unit,
            _count(path, number, prompt, fields.get(prompt), least=1),
            _count(path, number, output, fields.get(output)),
        )


def _csv_rows(path: Path, lines: list[str]) -> Iterator[_Row]:
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    for names, parse in ((_AZURE, _timestamp), (_BURSTGPT, _seconds)):
        if set(names) <= set(columns):
            return _named_rows(path, reader, names, parse)
    raise PlanInputError(
        f"{path}: is neither JSON lines nor a table with the columns {', '.join(_AZURE)} (Azure) "
        f"or {', '.join(_BURSTGPT)} (BurstGPT); its first line has: {', '.join(columns)}"
    )


def _named_rows(
    path: Path,
    reader: csv.DictReader[str],
    names: tuple[str, str, str],
    parse: Callable[[Path, int, Any], float],
) -> Iterator[_Row]:
    time, prompt, output = names
    for row in reader:
        number = reader.line_num
        yield (
            parse(path, number, row[time]),
            _count(path, number, prompt, row[prompt], least=1),
            _count(path, number, output, row[output]),
        )


def _timestamp(path: Path, number: int, value: Any) -> float:
    """Seconds of a date and time with up to seven digits after the point."""
    whole, _, fraction = str(value).partition(".")
    digits = fraction.partition("+")[0].rstrip("Z")
    try:
        seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
        return seconds + (float(f"0.{digits}") if digits else 0.0)
    except ValueError as error:
        raise _error(path, number, f"TIMESTAMP {value!r} is no date and time") from error


def _seconds(path: Path, number: int, value: Any) -> float:
    return _number(path, number, "Timestamp", value)


def _number(path: Path, number: int, name: str, value: Any) -> float:
    try:
        parsed = float(value)
    except (TypeError, ValueError) as error:
        raise _error(path, number, f"{name} is no number: {value!r}") from error
    if not math.isfinite(parsed):
        raise _error(path, number, f"{name} is not finite: {value!r}")
    return parsed


def _count(path: Path, number: int, name: str, value: Any, least: int = 0) -> int:
    parsed = _number(path, number, name, value)
    if parsed != int(parsed) or parsed < least:
        raise _error(path, number, f"{name} must be a whole number from {least} on, got {value!r}")
    return int(parsed)


def _error(path: Path, number: int, what: str) -> PlanInputError:
    return PlanInputError(f"{path}, line {number}: {what}")
