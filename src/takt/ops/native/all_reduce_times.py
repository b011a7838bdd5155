"""Times the native all-reduce between CPUs, once for each format and message size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from takt import _native
from takt.parallel.compression import FORMAT_OF_DTYPE, ReduceFormat

_VALUES_IN_ALL = 1 << 23
_MOST_ROUNDS, _LEAST_ROUNDS = 300, 15
_NUM_TURNS = 5
"""Formats take turns: what a neighbour leaves of a shared cache changes from moment to moment."""


def all_reduce_seconds(
    cpus: Sequence[int], sizes: Sequence[int]
) -> list[dict[ReduceFormat, float]]:
    """For each size (a number of float32 values, a multiple of 32) what each format takes, in s.

    A thread on each of `cpus` stands for a rank. The median of some turns, in which the CPUs should
    have nothing else to do; they take tens of milliseconds each.
    """
    turns = [[_turn(cpus, size) for size in sizes] for _ in range(_NUM_TURNS)]
    return [
        {name: statistics.median(turn[i][name] for turn in turns) for name in ReduceFormat}
        for i in range(len(sizes))
    ]


def _turn(cpus: Sequence[int], size: int) -> dict[ReduceFormat, float]:
    return {
        name: _native.all_reduce_ns(list(cpus), dtype, size, _num_rounds(size)) * 1e-9
        for dtype, name in FORMAT_OF_DTYPE.items()
    }


def _num_rounds(num_values: int) -> int:
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, _VALUES_IN_ALL // (4 * num_values)))
