"""How long a step takes: two linear pieces in what it computes and reads, fitted to steps seen.

A step either waits for memory (weights and KV stream past whatever the batch) or for arithmetic.
Each case is linear in the step's features and the slower one holds, hence the larger of two linear
functions: `t = max(a . x, b . x)`. A single one misses by twice as much around the knee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from takt.errors import ConfigError

_MAX_ROUNDS = 25
_MAX_SWEEPS = 400
_TOLERANCE = 1e-12
_MAX_RATIOS = 1024
"""Residuals that are kept; P99.9 still has a sample beyond it."""


class StepFeatures(NamedTuple):
    """What a step does, as its record counts it."""

    num_decode_seqs: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    """Sum over sequences of the context after the step."""
    num_qk_pairs: int
    """Sum over tokens of the context each attends to."""


class StepCoefficients(NamedTuple):
    """One linear piece; all are nanoseconds and none is negative, so more work is never faster."""

    fixed_ns: float
    per_decode_seq_ns: float
    per_prefill_token_ns: float
    per_kv_token_ns: float
    per_qk_pair_ns: float
    prompt_ns: float = 0.0
    """Of a step with a prompt, however short: prompts may be multiplied in a way of their own."""

    def predict_ns(self, features: StepFeatures) -> float:
        seqs, tokens, kv_tokens, pairs = features
        return (
            self.fixed_ns
            + self.per_decode_seq_ns * seqs
            + self.per_prefill_token_ns * tokens
            + self.per_kv_token_ns * kv_tokens
            + self.per_qk_pair_ns * pairs
            + (self.prompt_ns if tokens else 0.0)
        )


_LEAST_SAMPLES = 5
_NUM_COEFFICIENTS = len(StepCoefficients._fields)


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """The larger of two linear pieces, and how far real steps were from it.

    `residual_ratios` are measured / predicted, ascending; empty means exact.
    """

    pieces: tuple[StepCoefficients, StepCoefficients]
    residual_ratios: tuple[float, ...] = ()

    @classmethod
    def fit(cls, samples: Sequence[tuple[StepFeatures, float]]) -> StepTimeModel:
        """Least squares of the relative error over (features, nanoseconds).

        Alternates between giving each sample to the larger piece and fitting both; the best of
        several first divisions counts. Raises `ConfigError` for fewer samples than coefficients or
        a time that is not above 0.
        """
        if len(samples) < _LEAST_SAMPLES:
            raise ConfigError(
                f"{len(samples)} steps are too few to fit a model of their time; give "
                f"{_LEAST_SAMPLES} or more"
            )
        if not all(duration > 0 for _, duration in samples):
            raise ConfigError("every step's time must be above 0 ns")
        rows = [
            (1.0, *map(float, features), float(features.num_prefill_tokens > 0))
            for features, _ in samples
        ]
        times = [float(duration) for _, duration in samples]
        pieces = _fit_two_pieces(rows, times)
        return cls(pieces).with_residuals(samples)

    def with_residuals(self, samples: Sequence[tuple[StepFeatures, float]]) -> StepTimeModel:
        """The same pieces, with the residuals of these steps."""
        ratios = sorted(
            duration / max(self.predict_ns(features), 1.0) for features, duration in samples
        )
        return StepTimeModel(self.pieces, tuple(_thin(ratios)))

    def predict_ns(self, features: StepFeatures) -> float:
        """The expected time of a step."""
        first, second = self.pieces
        return max(first.predict_ns(features), second.predict_ns(features))

    def quantile_ns(self, features: StepFeatures, quantile: float) -> float:
        """The time that a share `quantile` of such steps stays within, by the residuals seen."""
        return self.predict_ns(features) * self.residual_ratio(quantile)

    def residual_ratio(self, quantile: float) -> float:
        """Measured / predicted at a quantile within [0, 1], interpolated; 1.0 without residuals."""
        if not 0 <= quantile <= 1:
            raise ConfigError(f"a quantile lies between 0 and 1, got {quantile}")
        ratios = self.residual_ratios
        if not ratios:
            return 1.0
        place = quantile * (len(ratios) - 1)
        low = int(place)
        high = min(low + 1, len(ratios) - 1)
        return ratios[low] + (place - low) * (ratios[high] - ratios[low])


def _fit_two_pieces(
    rows: list[tuple[float, ...]], times: list[float]
) -> tuple[StepCoefficients, StepCoefficients]:
    whole = _fit_piece(rows, times)
    best = (whole, whole)
    best_error = _error(best, rows, times)
    tokens = sorted(row[1] + row[2] for row in rows)
    for share in (0.25, 0.5, 0.75):
        border = tokens[int(share * (len(tokens) - 1))]
        small = [row[1] + row[2] <= border for row in rows]
        pieces = _alternate(rows, times, small)
        error = _error(pieces, rows, times)
        if error < best_error:
            best, best_error = pieces, error
    return best


def _alternate(
    rows: list[tuple[float, ...]], times: list[float], is_first: list[bool]
) -> tuple[StepCoefficients, StepCoefficients]:
    """Fits both pieces to their samples until no sample changes sides."""
    whole = _fit_piece(rows, times)
    pieces = (whole, whole)
    for _ in range(_MAX_ROUNDS):
        sides = []
        for side in (True, False):
            chosen = [i for i, first in enumerate(is_first) if first is side]
            if len(chosen) < _NUM_COEFFICIENTS:
                return pieces
            sides.append(_fit_piece([rows[i] for i in chosen], [times[i] for i in chosen]))
        pieces = (sides[0], sides[1])
        moved = [_dot(pieces[0], row) >= _dot(pieces[1], row) for row in rows]
        if moved == is_first:
            return pieces
        is_first = moved
    return pieces


def _fit_piece(rows: list[tuple[float, ...]], times: list[float]) -> StepCoefficients:
    """Non-negative least squares of sum (row . c / time - 1)^2, by coordinate descent.

    Columns are scaled to unit norm first: the pairs of a long prompt are a million times its
    sequences.
    """
    n = _NUM_COEFFICIENTS
    relative = [[value / time for value in row] for row, time in zip(rows, times, strict=True)]
    norms = [max(sum(row[j] ** 2 for row in relative) ** 0.5, 1e-300) for j in range(n)]
    scaled = [[row[j] / norms[j] for j in range(n)] for row in relative]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(n)] for i in range(n)]
    target = [sum(row[i] for row in scaled) for i in range(n)]
    solution = [0.0] * n
    for _ in range(_MAX_SWEEPS):
        change = 0.0
        for i in range(n):
            if gram[i][i] <= 0:
                continue  # a feature that no sample has
            gradient = target[i] - sum(gram[i][j] * solution[j] for j in range(n))
            value = max(0.0, solution[i] + gradient / gram[i][i])
            change = max(change, abs(value - solution[i]))
            solution[i] = value
        if change <= _TOLERANCE * max(solution, default=1.0):
            break
    return StepCoefficients(*(solution[j] / norms[j] for j in range(n)))


def _error(
    pieces: tuple[StepCoefficients, StepCoefficients],
    rows: list[tuple[float, ...]],
    times: list[float],
) -> float:
    return sum(
        (max(_dot(pieces[0], row), _dot(pieces[1], row)) / time - 1) ** 2
        for row, time in zip(rows, times, strict=True)
    )


def _dot(piece: StepCoefficients, row: tuple[float, ...]) -> float:
    return sum(c * x for c, x in zip(piece, row, strict=True))


def _thin(ascending: list[float]) -> list[float]:
    """At most `_MAX_RATIOS` of the values, evenly by rank, both ends among them."""
    if len(ascending) <= _MAX_RATIOS:
        return ascending
    last = len(ascending) - 1
    return [ascending[round(i * last / (_MAX_RATIOS - 1))] for i in range(_MAX_RATIOS)]
