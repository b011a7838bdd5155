"""A step-time model that keeps learning from the steps that run.

Each linear piece of the hinge is followed by a Kalman filter whose state, the coefficients, walks
at random; what is measured is the step's relative error, outliers clipped (Huber). What all steps
have in common, the machine's speed at the moment, is a factor that the last steps tell (`Drift`).
The P99 is the prediction times a quantile of recent residuals of steps of the same kind and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from takt.scheduler.drift import Drift
from takt.scheduler.residuals import POOL, RecentRatios, ResidualQuantile
from takt.scheduler.row_factors import RowFactors
from takt.scheduler.step_kind import NUM_KINDS, kind_of
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

QUANTILE = 0.99

_PRIOR = 0.3**2
"""Variance of a coefficient relative to its calibrated value, when nothing was seen yet."""
_WALK = 0.002**2
"""Variance that a step adds: a coefficient may move by a tenth in some thousand steps."""
_CLIP = 3.0
"""Deviations beyond so many times the usual one count as that many: an outlier."""
_USUAL_GAIN = 0.02
_LEAST_USUAL = 0.004
_SPREAD_GAIN = 0.05
_ALARM = 2.0
"""The last few steps were slow in earnest if they are so many usual deviations above the rest."""
_MISFIT_STEPS = 9
_MISFIT = 0.5
"""When steps with a prompt, of one kind, are off by this share in the median of the last ones,
their prediction is multiplied by it: a machine that was busy while it was calibrated leaves
coefficients that are wrong by far, and outliers are clipped, so that correcting them takes long."""
_FAR = _MISFIT / (1.0 + _MISFIT)
"""The same, of the longer of measured and predicted."""
_MIN_OF_KIND = 128
"""Residuals that a kind of steps needs for a quantile of its own."""
_LEAST_SEEN = 400
_ERROR_GAIN = 0.002
_FACTOR_GAIN = 0.05
_LEAST_SHARE = 0.01
"""A coefficient fitted as 0 may still grow, in units of this share of an ordinary step."""


@dataclass(frozen=True, slots=True)
class ModelError:
    """How good predictions were, over the last steps; each was made before its step ran."""

    num_steps: int
    mean_absolute: float
    """Mean of |measured / predicted - 1| with a memory of 500 steps."""
    covered: float
    """Share of steps within the predicted P99, with the same memory."""


class LearnedStepTime:
    """Predicts steps from a calibrated model and every step since; times are nanoseconds.

    `observe` costs some ten microseconds and allocates nothing that lasts.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._pieces = [_Piece(piece, model) for piece in model.pieces]
        self._rows = RowFactors()
        self._drift = Drift()
        self._alarm = 1.0
        """What the time of the next steps is multiplied by beyond the prediction, for safety."""
        self._usual = max(_LEAST_USUAL, _median([abs(r - 1) for r in model.residual_ratios]))
        self._spreads = [self._usual] * NUM_KINDS
        """The same by kind: what all of a kind are off by is no outlier."""
        # Calibration has too few samples to tell a P99: they count as more, so that the first
        # outlier in service is not the P99 by itself, and one among them is clipped.
        most = 1.0 + _CLIP * max(model.residual_ratio(0.9) - 1.0, _LEAST_USUAL)
        ratios = tuple(min(ratio, most) for ratio in model.residual_ratios)
        times = -(-_LEAST_SEEN // len(ratios)) if ratios else 0
        self._all = ResidualQuantile(QUANTILE, ratios * times)
        self._pool = RecentRatios(POOL, ratios * times)
        self._kinds = [ResidualQuantile(QUANTILE) for _ in range(NUM_KINDS)]
        self._of_kind = [RecentRatios(_MISFIT_STEPS, (1.0,)) for _ in range(NUM_KINDS)]
        self._factors = [1.0] * NUM_KINDS
        self._misfits: dict[int, float] = {}
        """Kinds whose steps are far from what the pieces say, and how far."""
        self._num_steps = 0
        self._mean_absolute = sum(abs(r - 1) for r in model.residual_ratios) / max(
            1, len(model.residual_ratios)
        )
        self._covered = QUANTILE

    @property
    def error(self) -> ModelError:
        return ModelError(self._num_steps, self._mean_absolute, self._covered)

    @property
    def pieces(self) -> tuple[StepCoefficients, StepCoefficients]:
        """The coefficients as they stand now; `factors` goes with them."""
        speed = self._drift.factor
        first, second = (piece.coefficients(speed) for piece in self._pieces)
        return first, second

    @property
    def factors(self) -> tuple[float, ...]:
        """What steps of each kind have lately been predicted to take over what the pieces say."""
        return tuple(self._factors)

    @property
    def ratios(self) -> tuple[float, ...]:
        """P99 over prediction, for each kind of step as `kind_of` numbers them."""
        return tuple(self._ratio(kind) for kind in range(NUM_KINDS))

    def predict_ns(self, features: StepFeatures) -> float:
        first, second = self._pieces
        speed = self._drift.factor * self._rows.of(features)
        if self._misfits:
            speed *= self._misfits.get(kind_of(features), 1.0)
        return speed * max(first.predict_ns(features), second.predict_ns(features))

    def p99_ns(self, features: StepFeatures) -> float:
        """The time that 99 of 100 such steps stay within."""
        predicted = self.predict_ns(features)
        return predicted * self._ratio(kind_of(features))

    def ratio(self, late_share: float) -> float:
        """Time over prediction that all but a share `late_share` of steps stay within now.

        More, where the last few steps were slow and the prediction has not taken it up yet.
        """
        return self._alarm * self._pool.at(late_share)

    def late_share(self, features: StepFeatures, limit_ns: float) -> float:
        """Share of such steps that would take longer than `limit_ns` now."""
        return self._pool.late_share(limit_ns / (self._alarm * self.predict_ns(features)))

    def observe(self, features: StepFeatures, duration_ns: float) -> tuple[float, float]:
        """Learns from a step that has run; returns what was predicted of it, and as its P99."""
        first, second = self._pieces
        ours, other = first.predict_ns(features), second.predict_ns(features)
        piece, plain = (first, ours) if ours >= other else (second, other)
        factor = self._rows.of(features)
        speed = self._drift.factor * factor
        predicted = max(plain * speed, 1.0)
        duration_ns = max(duration_ns, 1.0)
        kind = kind_of(features)
        misfit = self._misfits.get(kind, 1.0)
        foreseen = misfit * predicted
        self._factors[kind] += _FACTOR_GAIN * (misfit * factor - self._factors[kind])
        ratio = duration_ns / foreseen
        bound = self._ratio(kind)
        self._count(ratio, bound)
        self._kinds[kind].add(ratio)
        self._all.add(ratio)
        self._pool.add(ratio / self._alarm)  # which is part of what bounds were made of
        # Relative to the larger of both, so that neither a long nor a short step weighs too much.
        scale = max(duration_ns, predicted)
        error = (duration_ns - predicted) / scale
        usual = self._usual
        most = _CLIP * usual
        if abs(error) < _FAR:  # else it is for the misfits, or an outlier whatever the kind
            spread = self._spreads[kind]
            most = max(most, _CLIP * spread)
            self._spreads[kind] = spread + _SPREAD_GAIN * (1.25 * abs(error) - spread)
        clipped = min(max(error, -most), most)
        self._usual = max(_LEAST_USUAL, usual + _USUAL_GAIN * (1.25 * abs(clipped) - usual))
        piece.correct(features, speed / scale, clipped, usual * usual)
        drift = self._drift
        drift.add(duration_ns / max(misfit * factor * plain, 1.0))
        self._rows.learn(features, clipped)
        if features[1]:  # decodes alone are common enough to be corrected at once
            self._note_misfit(kind, duration_ns / predicted)
        slowness = drift.shortest / drift.factor
        self._alarm = slowness if slowness > 1.0 + _ALARM * self._usual else 1.0
        return foreseen, foreseen * bound

    # -- internals ----------------------------------------------------------------------------
    def _ratio(self, kind: int) -> float:
        of_kind = self._kinds[kind]
        return of_kind.value if len(of_kind) >= _MIN_OF_KIND else self._all.value

    def _note_misfit(self, kind: int, ratio: float) -> None:
        recent = self._of_kind[kind]
        recent.add(ratio)
        middle = recent.median
        if max(middle, 1.0 / middle) > 1.0 + _MISFIT:
            self._misfits[kind] = middle
        else:
            self._misfits.pop(kind, None)

    def _count(self, ratio: float, bound: float) -> None:
        self._num_steps += 1
        gain = max(_ERROR_GAIN, 1.0 / (self._num_steps + 1))
        self._mean_absolute += gain * (abs(ratio - 1.0) - self._mean_absolute)
        self._covered += gain * ((1.0 if ratio <= bound else 0.0) - self._covered)


class _Piece:
    """One linear piece under correction: coefficients as multiples of calibrated ones."""

    __slots__ = ("_covariance", "_num_corrections", "_state", "_units")

    def __init__(self, piece: StepCoefficients, model: StepTimeModel) -> None:
        ordinary = model.predict_ns(_ORDINARY)
        self._units = [
            max(coefficient, _LEAST_SHARE * ordinary / amount)
            for coefficient, amount in zip(piece, (1.0, *_ORDINARY, 1.0), strict=True)
        ]
        self._state = [c / unit for c, unit in zip(piece, self._units, strict=True)]
        self._covariance = [[_PRIOR * (i == j) for j in range(6)] for i in range(6)]
        self._num_corrections = 0

    def coefficients(self, speed: float) -> StepCoefficients:
        values = (s * unit * speed for s, unit in zip(self._state, self._units, strict=True))
        return StepCoefficients(*values)

    def predict_ns(self, features: StepFeatures) -> float:
        seqs, tokens, kv_tokens, pairs = features
        s0, s1, s2, s3, s4, s5 = self._state
        u0, u1, u2, u3, u4, u5 = self._units
        time = s0 * u0 + s1 * u1 * seqs + s2 * u2 * tokens + s3 * u3 * kv_tokens + s4 * u4 * pairs
        return time + s5 * u5 if tokens else time

    def correct(self, features: StepFeatures, scale: float, error: float, noise: float) -> None:
        """One Kalman step; `error` and `noise` (a variance) are relative to 1 / `scale`."""
        units = self._units
        h = [
            units[0] * scale,
            units[1] * scale * features[0],
            units[2] * scale * features[1],
            units[3] * scale * features[2],
            units[4] * scale * features[3],
            units[5] * scale if features[1] else 0.0,
        ]
        covariance = self._covariance
        h0, h1, h2, h3, h4, h5 = h
        gains = [
            r[0] * h0 + r[1] * h1 + r[2] * h2 + r[3] * h3 + r[4] * h4 + r[5] * h5
            for r in covariance
        ]
        g0, g1, g2, g3, g4, g5 = gains
        total = h0 * g0 + h1 * g1 + h2 * g2 + h3 * g3 + h4 * g4 + h5 * g5 + noise
        state, step = self._state, error / total
        for i in range(6):
            gain = gains[i]
            # More work is never faster.
            state[i] = max(state[i] + gain * step, 0.0)
            share = gain / total
            row = covariance[i]
            row[0] -= share * g0
            row[1] -= share * g1
            row[2] -= share * g2
            row[3] -= share * g3
            row[4] -= share * g4
            row[5] -= share * g5
            row[i] += _WALK
        self._num_corrections += 1
        if self._num_corrections % 64 == 0:
            self._bound()

    def _bound(self) -> None:
        """What no step tells about stays as uncertain as it was at first, and no more."""
        covariance = self._covariance
        for i in range(6):
            excess = covariance[i][i] / _PRIOR
            if excess > 1.0:
                factor = excess**-0.5
                for j in range(6):
                    covariance[i][j] *= factor
                    covariance[j][i] *= factor


_ORDINARY = StepFeatures(16, 64, 8192, 16384)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
