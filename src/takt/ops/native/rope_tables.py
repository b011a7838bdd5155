"""Tables of the rotary embedding, shared by layers that rotate alike."""

from __future__ import annotations

import numpy as np

from takt import _native


class RopeTables:
    """Makes each pair of tables once."""

    def __init__(self) -> None:
        self._tables: dict[tuple[bytes, float, int], tuple[_native.Vector, _native.Vector]] = {}

    def get(
        self, inv_freq: np.ndarray, magnitude: float, max_position: int
    ) -> tuple[_native.Vector, _native.Vector]:
        """cos and sin, float32 `[max_position, head_dim / 2]`, of `position * inv_freq`.

        Angles are float64: at position 100,000 a float32 angle is off by 0.004.
        """
        inv_freq = np.ascontiguousarray(inv_freq, dtype=np.float64)
        key = (inv_freq.tobytes(), magnitude, max_position)
        if key not in self._tables:
            angles = np.arange(max_position, dtype=np.float64)[:, None] * inv_freq
            self._tables[key] = (
                _native.pack_vector((np.cos(angles) * magnitude).astype(np.float32).ravel()),
                _native.pack_vector((np.sin(angles) * magnitude).astype(np.float32).ravel()),
            )
        return self._tables[key]
