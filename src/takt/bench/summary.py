"""Numbers of a run: what the clients saw, what failed, and what the client itself cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.bench.goodput import Targets
from takt.bench.load import LoadRun
from takt.bench.quantiles import Quantile, quantile
from takt.bench.record import RequestRecord
from takt.bench.request_times import RequestTimes, request_times
from takt.bench.token_times import Granularity

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of one latency, in milliseconds; quantiles in the order of `PERCENTS`."""

    num_samples: int
    mean_ms: float
    min_ms: float
    max_ms: float
    quantiles: list[Quantile]

    @classmethod
    def of(cls, values_ms: npt.NDArray[np.float64]) -> Distribution | None:
        """None if there is no sample."""
        if not len(values_ms):
            return None
        ordered = np.sort(values_ms)
        return cls(
            len(ordered),
            float(ordered.mean()),
            float(ordered[0]),
            float(ordered[-1]),
            [quantile(ordered, percent / 100) for percent in PERCENTS],
        )

    def at(self, percent: float) -> Quantile:
        return self.quantiles[PERCENTS.index(percent)]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Over requests without error; ITL is over all their gaps."""

    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    largest_gap: Distribution | None
    e2e: Distribution | None

    @classmethod
    def of(cls, times: Sequence[RequestTimes]) -> Latencies:
        several = [t for t in times if len(t.gaps_ms)]

        def column(values: Sequence[float]) -> npt.NDArray[np.float64]:
            return np.array(values, dtype=np.float64)

        gaps = np.concatenate([t.gaps_ms for t in several]) if several else column([])
        return cls(
            ttft=Distribution.of(column([t.ttft_ms for t in times])),
            itl=Distribution.of(gaps),
            tpot=Distribution.of(column([t.tpot_ms for t in times if t.tpot_ms is not None])),
            largest_gap=Distribution.of(column([t.largest_gap_ms for t in several])),
            e2e=Distribution.of(column([t.e2e_ms for t in times])),
        )


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of requests without error; None is what no server's usage told."""

    num_prompt: int
    num_output: int
    num_cached: int | None
    num_failed_output: int
    """Events of requests that failed: sent, and in no other figure."""


@dataclass(frozen=True, slots=True)
class UsageCheck:
    """The server's counts against what was seen and asked for, in requests."""

    num_without_usage: int
    num_surplus_text: int
    """More events with text than tokens counted."""
    num_other_prompt_length: int
    """The server counted another length of the prompt than was asked for."""
    num_short_outputs: int
    """Fewer tokens than asked for: an end token, which a server without ignore_eos honours."""


@dataclass(frozen=True, slots=True)
class ClientCost:
    """What the load generator took from the machine, and how far it lagged."""

    cpu_s: float
    cores: float
    us_per_event: float | None
    num_coalesced: int
    """Events that came in one socket read with the one before: their gap is 0."""
    max_send_delay_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    num_requests: int
    num_ok: int
    duration_s: float
    was_interrupted: bool
    errors: dict[str, int]
    error_examples: dict[str, str]
    tokens: TokenCounts
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    """Prompt and output."""
    latencies: Latencies
    granularity: str
    """token, chunk, unknown or mixed: what a gap lies between."""
    tokens_per_event: float | None
    goodput_per_s: float | None
    """Requests per second that met all targets; None without targets."""
    num_good: int | None
    usage: UsageCheck
    client: ClientCost


def summarize(run: LoadRun, targets: Targets, *, has_exact_prompts: bool) -> Summary:
    """Every request that was sent is counted, as good, as too slow or by the kind of its error."""
    good = [record for record in run.records if record.is_ok]
    failed = [record for record in run.records if not record.is_ok]
    times = [request_times(record) for record in good]
    tokens = _count_tokens(good, failed, times)
    per_s = 1 / run.duration_s if run.duration_s > 0 else 0.0
    num_good = sum(targets.are_met(t) for t in times) if targets else None
    num_events = sum(len(t.tokens.stamps_ns) for t in times)
    return Summary(
        num_requests=len(run.records),
        num_ok=len(good),
        duration_s=run.duration_s,
        was_interrupted=run.was_interrupted,
        errors=dict(Counter(record.error or "" for record in failed)),
        error_examples={r.error or "": r.error_detail for r in reversed(failed)},
        tokens=tokens,
        requests_per_s=len(good) * per_s,
        output_tokens_per_s=tokens.num_output * per_s,
        total_tokens_per_s=(tokens.num_output + tokens.num_prompt) * per_s,
        latencies=Latencies.of(times),
        granularity=_granularity(times),
        tokens_per_event=tokens.num_output / num_events if num_events else None,
        goodput_per_s=None if num_good is None else num_good * per_s,
        num_good=num_good,
        usage=_check_usage(times, has_exact_prompts),
        client=_client_cost(run),
    )


def _count_tokens(
    good: Sequence[RequestRecord], failed: Sequence[RequestRecord], times: Sequence[RequestTimes]
) -> TokenCounts:
    cached = [
        record.usage.num_cached_tokens
        for record in good
        if record.usage is not None and record.usage.num_cached_tokens is not None
    ]
    return TokenCounts(
        num_prompt=sum(t.num_prompt_tokens for t in times),
        num_output=sum(t.tokens.num_tokens for t in times),
        num_cached=sum(cached) if cached else None,
        num_failed_output=sum(len(record.stamps) for record in failed),
    )


def _granularity(times: Sequence[RequestTimes]) -> str:
    kinds = {t.tokens.granularity for t in times}
    if not kinds:
        return Granularity.UNKNOWN.value
    return kinds.pop().value if len(kinds) == 1 else "mixed"


def _check_usage(times: Sequence[RequestTimes], has_exact_prompts: bool) -> UsageCheck:
    return UsageCheck(
        num_without_usage=sum(t.tokens.granularity is Granularity.UNKNOWN for t in times),
        num_surplus_text=sum(t.tokens.has_surplus for t in times),
        num_other_prompt_length=sum(
            has_exact_prompts and t.num_prompt_tokens != t.record.num_prompt_tokens for t in times
        ),
        num_short_outputs=sum(t.tokens.num_tokens < t.record.max_tokens for t in times),
    )


def _client_cost(run: LoadRun) -> ClientCost:
    num_events = sum(len(record.stamps) for record in run.records)
    delays = [record.sent_ns - record.planned_ns for record in run.records]
    return ClientCost(
        cpu_s=run.client_cpu_s,
        cores=run.client_cpu_s / run.duration_s if run.duration_s > 0 else 0.0,
        us_per_event=run.client_cpu_s * 1e6 / num_events if num_events else None,
        num_coalesced=sum(record.num_coalesced for record in run.records),
        max_send_delay_ms=max(delays, default=0) / 1e6,
    )
