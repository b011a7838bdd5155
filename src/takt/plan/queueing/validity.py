"""What a closed form is worth at one load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Validity:
    """`expected_error` is the relative error of the P99 to reckon with, None if unbounded."""

    is_valid: bool
    expected_error: float | None
    note: str
