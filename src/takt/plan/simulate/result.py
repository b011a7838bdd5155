"""What a simulated server's requests saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Times in seconds, of the requests and steps after the warm-up."""

    ttft_s: Floats
    """`[num_requests]`, from a request's arrival to the end of the step with its first token."""
    e2e_s: Floats
    """`[num_requests]`, to the end of the step with its last token."""
    tpot_s: Floats
    """`[num_requests with two tokens or more]`, the mean of each request's gaps."""
    gaps_s: Floats
    """Gaps between two tokens of a stream; `gap_counts` tells how many streams had each."""
    gap_counts: Floats
    gap_ends_s: Floats
    """When each of them ended, on the arrivals' clock."""
    window_s: float
    """From the end of the warm-up to the last arrival."""
    num_steps: int
    num_output_tokens: int
    mean_running: float
    """Sequences in a step, averaged over the time of steps and idleness."""
    busy_share: float
    num_preemptions: int
    peak_kv_share: float
    num_refused: int
    """Requests after the warm-up that were not let in; no other figure counts them."""
    num_met: int
    """Those whose first token was in time, and at most one in a hundred of whose gaps was not."""
    served: npt.NDArray[np.intp]
    """`[num_requests]`, the place of each among the arrivals."""

    @property
    def num_requests(self) -> int:
        return len(self.ttft_s)

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.window_s if self.window_s > 0 else 0.0

    def itl_quantile_s(self, quantile: float) -> float:
        """Over gaps; NaN if no request had two tokens."""
        return weighted_quantile(self.gaps_s, self.gap_counts, quantile)

    def itl_by_window_s(self, quantile: float, length_s: float, start_s: float) -> list[float]:
        """The quantile over the gaps that end in each full window from `start_s` on."""
        found = []
        end_s = self.gap_ends_s.max(initial=start_s)
        for index in range(int((end_s - start_s) // length_s)):
            first = start_s + index * length_s
            inside = (self.gap_ends_s >= first) & (self.gap_ends_s < first + length_s)
            found.append(weighted_quantile(self.gaps_s[inside], self.gap_counts[inside], quantile))
        return found

    def ttft_quantile_s(self, quantile: float) -> float:
        return _quantile(self.ttft_s, quantile)

    def e2e_quantile_s(self, quantile: float) -> float:
        return _quantile(self.e2e_s, quantile)


def weighted_quantile(values: Floats, counts: Floats, quantile: float) -> float:
    """Smallest value that at least a share `quantile` of the counted values stays within."""
    if len(values) == 0:
        return float("nan")
    order = np.argsort(values)
    cumulative = np.cumsum(counts[order])
    index = int(np.searchsorted(cumulative, quantile * cumulative[-1] * (1 - 1e-12)))
    return float(values[order[min(index, len(values) - 1)]])


def _quantile(values: Floats, quantile: float) -> float:
    return float(np.quantile(values, quantile)) if len(values) else float("nan")
