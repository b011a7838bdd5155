"""What steps of so many rows take over what a linear model says.

Products take rows by tiles, and other kernels for few of them: the time is a staircase in the rows,
with heights that a kernel and a machine decide. So it is learned, and no height is written here: a
factor for each number of rows, and for each sixteen of them where they are many, with and without
a prompt.
"""

from __future__ import annotations

from takt.scheduler.step_time import StepFeatures

_EACH = 32
"""Rows up to which each number has a factor of its own."""
_TILE = 16
_MAX_ROWS = 1024

_FIRST_GAIN = 0.25
_LEAST_GAIN = 0.01
"""A factor follows the last hundred steps of its kind; the first ones move it further."""
_MOST = 2.0
"""Beyond, something else is wrong than the number of rows."""


def _size_of(rows: int) -> int:
    if rows <= _EACH:
        return rows
    return _EACH + -(-(rows - _EACH) // _TILE)


_SIZES = tuple(_size_of(rows) for rows in range(_MAX_ROWS + 1))
_NUM_SIZES = _SIZES[-1] + 1


class RowFactors:
    """Factors by `kind`, which is their place."""

    __slots__ = ("_factors", "_gains")

    def __init__(self) -> None:
        self._factors = [1.0] * (2 * _NUM_SIZES)
        self._gains = [_FIRST_GAIN] * (2 * _NUM_SIZES)

    def of(self, features: StepFeatures) -> float:
        return self._factors[place_of(features)]

    def learn(self, features: StepFeatures, error: float) -> None:
        """`error` is measured / predicted - 1 of a step, with its factor, outliers bounded."""
        place = place_of(features)
        gain = self._gains[place]
        factor = self._factors[place] * (1.0 + gain * error)
        self._factors[place] = min(max(factor, 1.0 / _MOST), _MOST)
        self._gains[place] = max(gain / (1.0 + gain), _LEAST_GAIN)


def place_of(features: StepFeatures) -> int:
    tokens = features[1]
    rows = features[0] + tokens
    size = _SIZES[rows] if rows <= _MAX_ROWS else _NUM_SIZES - 1
    return size + _NUM_SIZES if tokens else size
