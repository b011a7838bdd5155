"""Offers a load to a service and takes the P99s that its clients saw."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from takt.bench.bench import run_bench
from takt.bench.load import LoadRun
from takt.bench.options import BenchOptions
from takt.bench.quantiles import Quantile, quantile
from takt.bench.request_times import RequestTimes, request_times
from takt.errors import TaktError
from takt.plan.simulate.arrivals import Arrival

WARM_UP_SHARE = 0.1
"""Of the requests, in front: neither the simulation's nor the service's count."""

OnProgress = Callable[[str, int, int], None]


def of_requests(name: str, on_progress: OnProgress) -> OnProgress:
    """Tells of a load's requests under its name, and not of the making of its prompts."""

    def report(stage: str, done: int, total: int) -> None:
        if stage == "requests":
            on_progress(name, done, total)

    return report


class LoadError(TaktError):
    """The service answered no request of the load."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes; the same for all loads of a verification."""

    url: str
    model: str | None = None
    endpoint: str = "completions"
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """P99s in milliseconds, of the requests after the warm-up and the gaps while load was on."""

    arrivals: tuple[Arrival, ...]
    """As they were: times since the first, prompt tokens as counted, output tokens as sent."""
    itl: Quantile | None
    ttft: Quantile
    e2e: Quantile
    median_ttft_ms: float
    num_failed: int
    failures: dict[str, int]
    gaps_are_tokens: bool
    start_ns: int
    """Monotonic, of the first request's planned time."""
    first_stamps_ns: tuple[int, ...] = ()
    """Monotonic, when each request's first token came, in the order of the requests."""
    cached_share: float = 0.0
    """Of the prompts' tokens, in the service's prefix cache, as far as it tells."""
    coalesced_share: float = 0.0
    """Of the tokens, that came in the same read as the one before."""


def offer(
    target: Target, arrivals: Sequence[Arrival], on_progress: OnProgress, *, seed: int
) -> Measurement:
    """An open loop: each request at its time. Raises `LoadError` if none succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text("".join(_line(arrival) for arrival in arrivals))
        return _run(target, on_progress, trace=str(trace), seed=seed)


def keep_busy(
    target: Target,
    concurrency: int,
    num_requests: int,
    lengths: tuple[int, int],
    on_progress: OnProgress,
    *,
    seed: int,
) -> Measurement:
    """A closed loop of requests with `lengths` tokens of prompt and of output."""
    return _run(
        target,
        on_progress,
        concurrency=concurrency,
        num_requests=num_requests,
        prompt_tokens=lengths[0],
        output_tokens=lengths[1],
        seed=seed,
    )


def _run(target: Target, on_progress: OnProgress, **options: object) -> Measurement:
    chosen = BenchOptions(
        endpoint=target.endpoint,
        model=target.model,
        api_key=target.api_key,
        **options,  # type: ignore[arg-type]
    )
    result = run_bench(target.url, chosen, on_progress)
    if result.summary.was_interrupted:
        raise KeyboardInterrupt
    return measure(result.run, result.summary.errors)


def measure(run: LoadRun, failures: dict[str, int]) -> Measurement:
    """Raises `LoadError` if no request succeeded."""
    records = sorted((r for r in run.records if r.is_ok), key=lambda r: r.planned_ns)
    if not records:
        kinds = ", ".join(failures) or "none was sent"
        raise LoadError(f"no request of the load succeeded: {kinds}")
    times = [request_times(record) for record in records]
    counted = times[int(len(times) * WARM_UP_SHARE) :]
    gaps = _gaps_while_loaded(times, counted)
    ttft = np.sort([t.ttft_ms for t in counted])
    e2e = np.sort([t.e2e_ms for t in counted])
    start_ns = records[0].planned_ns
    return Measurement(
        arrivals=tuple(
            Arrival(t.record.planned_ns - start_ns, t.num_prompt_tokens, t.tokens.num_tokens)
            for t in times
        ),
        itl=quantile(gaps, 0.99) if len(gaps) else None,
        ttft=quantile(ttft, 0.99),
        e2e=quantile(e2e, 0.99),
        median_ttft_ms=float(np.median(ttft)),
        num_failed=len(run.records) - len(records),
        failures=failures,
        gaps_are_tokens=all(t.tokens.granularity.value == "token" for t in times),
        start_ns=start_ns,
        first_stamps_ns=tuple(int(t.tokens.stamps_ns[0]) for t in times),
        cached_share=_cached_share(times),
        coalesced_share=sum(r.num_coalesced for r in records) / sum(len(r.stamps) for r in records),
    )


def _cached_share(times: Sequence[RequestTimes]) -> float:
    usages = [t.record.usage for t in times]
    num_cached = sum(usage.num_cached_tokens or 0 for usage in usages if usage is not None)
    return num_cached / max(sum(t.num_prompt_tokens for t in times), 1)


def _gaps_while_loaded(
    times: Sequence[RequestTimes], counted: Sequence[RequestTimes]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sorted milliseconds of the gaps that ended between the warm-up's end and the last arrival.

    The simulator counts the same; a run so short that there is none counts them all.
    """
    begin, end = counted[0].record.planned_ns, counted[-1].record.planned_ns
    all_gaps = np.concatenate([t.gaps_ms for t in times])
    ends = np.concatenate([t.tokens.stamps_ns[1:] for t in times])
    kept = all_gaps[(ends >= begin) & (ends <= end)]
    return np.sort(kept if len(kept) else all_gaps)


def _line(arrival: Arrival) -> str:
    return (
        json.dumps(
            {
                "arrival_s": arrival.time_ns / 1e9,
                "num_prompt_tokens": arrival.num_prompt_tokens,
                "num_output_tokens": arrival.num_output_tokens,
            }
        )
        + "\n"
    )
