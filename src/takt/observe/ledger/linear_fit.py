"""A running least-squares fit of step times: old steps fade, coefficients are never negative."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RIDGE = 1e-7


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
        """The least squares of columns of unit norm, less those that would be negative.

        A trace on the diagonal keeps columns apart that have always moved together.
        """
        norms = np.sqrt(np.diag(self._gram))
        used = np.flatnonzero(norms > 0)
        solution = np.zeros(len(norms))
        while len(used):
            scale = norms[used]
            gram = self._gram[np.ix_(used, used)] / np.outer(scale, scale)
            gram[np.diag_indices(len(used))] += RIDGE
            values = np.linalg.solve(gram, self._target[used] / scale) / scale
            if (values >= 0).all():
                solution[used] = values
                break
            used = used[values >= 0]
        self.coefficients = solution
