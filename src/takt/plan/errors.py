"""Mistakes in what is asked of the planner; the command line exits with 2."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from takt.errors import ConfigError


class PlanInputError(ConfigError):
    """A figure or a name that no plan can be made from; the text names it and the way out."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> PlanInputError:
    """An error with the names nearest to the one given."""
    names = sorted(set(known))
    folded = {candidate.lower(): candidate for candidate in names}
    nearest = difflib.get_close_matches(name.lower(), list(folded), n=3, cutoff=0.4)
    hint = ", ".join(folded[n] for n in nearest) if nearest else ", ".join(names)
    lead = "nearest" if nearest else "known"
    return PlanInputError(f"unknown {kind} {name!r}; {lead}: {hint}")


def require_positive(label: str, value: float) -> float:
    """The value; raises `PlanInputError` unless it is finite and above 0."""
    if not math.isfinite(value) or value <= 0:
        raise PlanInputError(f"{label} must be a number above 0, got {value}")
    return value


def require_whole(label: str, value: int, least: int = 1) -> int:
    if value < least:
        raise PlanInputError(f"{label} must be at least {least}, got {value}")
    return value
