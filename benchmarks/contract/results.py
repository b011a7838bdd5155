"""The file of results: each part is written when it is measured, beside those of earlier starts."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cpu.bar import BarResult, Figure, Verdict

FILE = "contract.json"


class Results:
    """Parts by key, with the setting in which each was measured."""

    def __init__(self, path: Path, setting: Mapping[str, Any]) -> None:
        """What the file holds of the same setting is kept; any other is of no use beside it."""
        self._path = path
        self._setting = dict(setting)
        self._parts: dict[str, Any] = {}
        try:
            document = json.loads(path.read_text())
            if document["setting"] == self._setting:
                self._parts = dict(document["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def read(self, key: str) -> BarResult | None:
        """A part that an earlier start has measured; None if it has not, or could not."""
        part = self._parts.get(key)
        if part is None or part["missing"] is not None:
            return None
        names = [field.name for field in dataclasses.fields(Figure)]
        figures = [Figure(**{name: one[name] for name in names}) for one in part["figures"]]
        return BarResult(figures, part["details"], part["notes"])

    def add(self, key: str, title: str, result: BarResult, capacity: float | None) -> None:
        """Writes the file anew with this part. `capacity` is what the part was measured by."""
        self._parts[key] = {
            "title": title,
            "measured": time.strftime("%Y-%m-%d %H:%M"),
            "capacity_per_s": capacity,
            "figures": [
                {**dataclasses.asdict(f), "verdict": f.verdict.value} for f in result.figures
            ],
            "details": result.details,
            "notes": result.notes,
            "missing": None if result.missing is None else Verdict(result.missing).value,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        document = {"setting": self._setting, "parts": self._parts}
        self._path.write_text(json.dumps(document, indent=2) + "\n")

    def when(self, key: str) -> str:
        """Date and time at which a part was measured."""
        return str(self._parts[key]["measured"])
