"""What the clients of a run saw, against targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from benchmarks.percentile import percentile

from takt.bench.load import LoadRun
from takt.bench.record import RequestRecord
from takt.bench.request_times import RequestTimes, request_times

LATE_SHARE = 0.01
"""Of a request's gaps that may be late: what a P99 leaves."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Targets:
    itl_ms: float
    ttft_ms: float
    """Of the short requests."""
    long_ttft_ms: float

    def are_met(self, times: RequestTimes) -> bool:
        ttft_ms = self.long_ttft_ms if times.record.is_long else self.ttft_ms
        late = int((times.gaps_ms > self.itl_ms).sum())
        return times.ttft_ms <= ttft_ms and late <= LATE_SHARE * len(times.gaps_ms)


class Outcome:
    """One run; requests that fail for another reason than 429 raise `RuntimeError`."""

    def __init__(self, run: LoadRun) -> None:
        self.refused = [r for r in run.records if r.error == "http_429"]
        failed = [r for r in run.records if r.error not in (None, "http_429")]
        if failed:
            raise RuntimeError(f"{len(failed)} requests failed: {failed[0].error_detail[:200]}")
        self.times = [request_times(r) for r in run.records if r.error is None]
        self.start_ns = min(r.planned_ns for r in run.records)
        self.last_planned_ns = max(r.planned_ns for r in run.records)

    def ttft_ms(self, *, is_long: bool) -> Floats:
        return np.array([t.ttft_ms for t in self.times if t.record.is_long is is_long])

    def gaps(self) -> tuple[Floats, Floats]:
        """Ends in seconds since the first request, and milliseconds, of every gap under load."""
        ends, gaps = [], []
        for times in self.times:
            ends.append((times.tokens.stamps_ns[1:] - self.start_ns) / 1e9)
            gaps.append(times.gaps_ms)
        end_s, gap_ms = np.concatenate(ends), np.concatenate(gaps)
        under_load = end_s <= (self.last_planned_ns - self.start_ns) / 1e9
        return end_s[under_load], gap_ms[under_load]

    def p99_by_window_ms(self, window_s: float, warm_up_s: float) -> Floats:
        """P99 of the gaps that end in each full window after the warm-up."""
        end_s, gap_ms = self.gaps()
        num_windows = int((end_s.max() - warm_up_s) // window_s)
        result = []
        for index in range(num_windows):
            first = warm_up_s + index * window_s
            inside = gap_ms[(end_s >= first) & (end_s < first + window_s)]
            if len(inside):
                result.append(percentile(inside, 99))
        return np.array(result)

    def num_met(self, targets: Targets, warm_up_s: float = 0.0) -> int:
        first_ns = self.start_ns + warm_up_s * 1e9
        return sum(targets.are_met(t) for t in self.times if t.record.planned_ns >= first_ns)


def refusal_ms(records: Sequence[RequestRecord]) -> Floats:
    """Request sent to answer read."""
    return np.array([(r.end_ns - r.sent_ns) / 1e6 for r in records])
