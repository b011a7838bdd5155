"""Requests to a server, in this process, and what is read from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from takt.bench.bench import BenchResult, run_bench
from takt.bench.options import BenchOptions
from takt.bench.request_times import RequestTimes, request_times


def load(
    url: str, *, num_requests: int, streams: int = 1, prompt: int = 400, output: int = 128
) -> BenchResult:
    """A closed loop of fresh prompts; raises `RuntimeError` if a request fails."""
    options = BenchOptions(
        num_requests=num_requests,
        concurrency=streams,
        prompt_tokens=prompt,
        output_tokens=output,
    )
    result = run_bench(url, options, lambda *progress: None)
    if result.summary.errors:
        raise RuntimeError(f"requests failed: {result.summary.error_examples}")
    return result


def times_of(results: Sequence[BenchResult]) -> list[RequestTimes]:
    return [request_times(record) for result in results for record in result.run.records]


def gaps_ms(results: Sequence[BenchResult]) -> npt.NDArray[np.float64]:
    """All gaps of all streams."""
    return np.concatenate([times.gaps_ms for times in times_of(results)])


def decode_gaps_ms(result: BenchResult) -> npt.NDArray[np.float64]:
    """Gaps during which no other request waited for its first token."""
    times = times_of([result])
    waits = [(t.record.planned_ns, int(t.tokens.stamps_ns[0])) for t in times]
    kept: list[float] = []
    for one in times:
        stamps = one.tokens.stamps_ns
        begins, ends = stamps[:-1], stamps[1:]
        is_free = np.ones(len(begins), dtype=bool)
        for wait_begin, wait_end in waits:
            is_free &= (ends <= wait_begin) | (begins >= wait_end)
        kept += ((ends - begins)[is_free] / 1e6).tolist()
    return np.array(kept)
