"""The last values of something, and their quantiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Recent:
    """Up to `capacity` values, the newest; they come in batches."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.values: Floats = np.zeros(0)

    def __len__(self) -> int:
        return len(self.values)

    def add(self, values: Floats) -> None:
        self.values = np.concatenate([self.values, values])[-self._capacity :]

    def quantile(self, quantile: float) -> float:
        """Within [0, 1], interpolated; there must be a value."""
        return float(np.quantile(self.values, quantile))
