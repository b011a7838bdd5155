"""A running least-squares fit of step times: old steps fade, coefficients are never negative."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_SWEEPS = 200
TOLERANCE = 1e-9


class LinearFit:
    """Minimises sum of decay^age (x . c / t - 1)^2 over c >= 0, from its normal equations alone.

    Errors are relative, so that short steps count as much as long ones. An update costs
    O(num_features^2), whatever was seen before.
    """

    def __init__(self, num_features: int, half_life: float) -> None:
        """`half_life` is in samples."""
        self._gram = np.zeros((num_features, num_features))
        self._target = np.zeros(num_features)
        self._half_life = half_life
        self.coefficients: Floats = np.zeros(num_features)
        self.num_samples = 0

    def add(self, features: Floats, times: Floats) -> None:
        """float64 `[num_samples, num_features]` and the times that they took, all above 0."""
        if not len(times):
            return
        relative = features / times[:, None]
        ages = np.arange(len(times) - 1, -1, -1)
        weights = 0.5 ** (ages / self._half_life)
        keep = 0.5 ** (len(times) / self._half_life)
        weighted = relative * weights[:, None]
        self._gram = keep * self._gram + weighted.T @ relative
        self._target = keep * self._target + weighted.sum(axis=0)
        self.num_samples += len(times)
        self._solve()

    def predict(self, features: Floats) -> Floats:
        """float64 `[num_samples]`."""
        result: Floats = features @ self.coefficients
        return result

    def _solve(self) -> None:
        """Coordinate descent on columns of unit norm, from the last solution on."""
        norms = np.sqrt(np.maximum(np.diag(self._gram), 1e-300))
        gram = self._gram / np.outer(norms, norms)
        target = (self._target / norms).tolist()
        rows = gram.tolist()
        solution = (self.coefficients * norms).tolist()
        used = [j for j in range(len(target)) if rows[j][j] > 0]
        for _ in range(MAX_SWEEPS):
            change = 0.0
            for i in used:
                row = rows[i]
                gradient = target[i] - sum(row[j] * solution[j] for j in used)
                value = max(0.0, solution[i] + gradient / row[i])
                change = max(change, abs(value - solution[i]))
                solution[i] = value
            if change <= TOLERANCE * max(solution, default=1.0):
                break
        self.coefficients = np.array(solution) / norms
