"""One request's latencies from its stamps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.bench.record import RequestRecord
from takt.bench.token_times import TokenTimes, token_times


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Of a request without error; times in milliseconds."""

    record: RequestRecord
    tokens: TokenTimes
    num_prompt_tokens: int
    """As the server counted, or as asked for."""
    ttft_ms: float
    e2e_ms: float
    """To the last token."""
    tpot_ms: float | None
    """(last - first) / (tokens - 1); None for a single token."""
    gaps_ms: npt.NDArray[np.float64]
    """float64 `[num_events - 1]`."""

    @property
    def largest_gap_ms(self) -> float:
        return float(self.gaps_ms.max()) if len(self.gaps_ms) else 0.0


def request_times(record: RequestRecord) -> RequestTimes:
    tokens = token_times(record)
    stamps = tokens.stamps_ns
    tpot_ms = None
    if tokens.num_tokens > 1 and len(stamps) > 1:
        tpot_ms = float(stamps[-1] - stamps[0]) / 1e6 / (tokens.num_tokens - 1)
    counted = record.usage.num_prompt_tokens if record.usage is not None else None
    return RequestTimes(
        record=record,
        tokens=tokens,
        num_prompt_tokens=record.num_prompt_tokens if counted is None else counted,
        ttft_ms=float(stamps[0] - record.planned_ns) / 1e6,
        e2e_ms=float(stamps[-1] - record.planned_ns) / 1e6,
        tpot_ms=tpot_ms,
        gaps_ms=np.diff(stamps) / 1e6,
    )
