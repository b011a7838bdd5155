"""The percentile that all reports here mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def percentile(values: npt.NDArray[np.float64] | Sequence[float], percent: float) -> float:
    """The order statistic: a value that was measured."""
    return float(np.percentile(np.asarray(values), percent, method="inverted_cdf"))
