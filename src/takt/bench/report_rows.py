"""The rows of a report, as text: the same in the terminal and in HTML."""

from __future__ import annotations

from takt.bench.quantiles import Quantile
from takt.bench.summary import Distribution, Summary

LATENCY_HEADER = ("ms", "samples", "mean", "P50", "P90", "P99", "[95 %]", "P99.9", "largest")


def latency_rows(summary: Summary) -> list[tuple[str, ...]]:
    """One row per latency that has samples; the interval is that of P99."""
    unit = "chunk gap" if summary.granularity == "chunk" else "ITL"
    latencies = summary.latencies
    named = (
        ("TTFT", latencies.ttft),
        (unit, latencies.itl),
        ("TPOT", latencies.tpot),
        ("largest gap", latencies.largest_gap),
        ("E2E", latencies.e2e),
    )
    return [_latency_row(name, values) for name, values in named if values is not None]


def _latency_row(name: str, values: Distribution) -> tuple[str, ...]:
    p99 = values.at(99.0)
    return (
        name,
        f"{values.num_samples:,}",
        ms(values.mean_ms),
        ms(values.at(50.0).value),
        ms(values.at(90.0).value),
        ms(p99.value),
        _interval(p99),
        ms(values.at(99.9).value),
        ms(values.max_ms),
    )


def _interval(q: Quantile) -> str:
    low = "?" if q.low is None else ms(q.low)
    high = "?" if q.high is None else ms(q.high)
    return f"{low} - {high}"


def fact_rows(summary: Summary) -> list[tuple[str, str]]:
    tokens = summary.tokens
    rows = [
        ("requests", _requests(summary)),
        ("time", f"{summary.duration_s:.2f} s"),
        (
            "throughput",
            f"{summary.requests_per_s:.2f} requests/s, {summary.output_tokens_per_s:,.1f} output "
            f"tokens/s, {summary.total_tokens_per_s:,.1f} tokens/s with prompts",
        ),
        ("tokens", f"{tokens.num_prompt:,} of prompts, {tokens.num_output:,} of output"),
        ("prefix cache", _hits(summary)),
    ]
    if summary.goodput_per_s is not None:
        rows.append(
            (
                "goodput",
                f"{summary.goodput_per_s:.2f} requests/s ({summary.num_good} of "
                f"{summary.num_requests} met all targets)",
            )
        )
    rows.append(("client", _client(summary)))
    return rows


def warnings(summary: Summary) -> list[str]:
    """What a reader must know before believing the figures."""
    result = [
        f"{count} x {kind}: {_short(summary.error_examples[kind])}"
        for kind, count in summary.errors.items()
    ]
    if summary.was_interrupted:
        result.append("the run was interrupted")
    if tokens := summary.tokens.num_failed_output:
        result.append(f"{tokens} events of failed requests are in no other figure")
    if summary.granularity == "chunk":
        result.append(
            f"{summary.tokens_per_event or 0:.2f} tokens per event: gaps are between chunks"
        )
    if summary.granularity == "mixed":
        result.append("some streams had one event per token and some had not: ITL mixes both")
    usage = summary.usage
    for count, text in (
        (usage.num_without_usage, "answers had no usage: each event counts as a token"),
        (usage.num_surplus_text, "answers had more events with text than tokens in their usage"),
        (usage.num_other_prompt_length, "prompts had another length by the server's usage"),
        (usage.num_short_outputs, "answers were shorter than asked for"),
    ):
        if count:
            result.append(f"{count} {text}")
    return result


def ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1 else f"{value:.2f}"


def _requests(summary: Summary) -> str:
    num_failed = summary.num_requests - summary.num_ok
    return f"{summary.num_ok} answered, {num_failed} failed"


def _hits(summary: Summary) -> str:
    tokens = summary.tokens
    if tokens.num_cached is None:
        return "hit rate unknown: the server sends no cached_tokens"
    share = tokens.num_cached / tokens.num_prompt if tokens.num_prompt else 0.0
    return f"{share:.1%} of prompt tokens were hits"


def _client(summary: Summary) -> str:
    client = summary.client
    cost = f"{client.cores:.3f} cores"
    if client.us_per_event is not None:
        cost += f", {client.us_per_event:.1f} us per event"
    return (
        f"{cost}; {client.num_coalesced} events shared a read; sends late by up to "
        f"{client.max_send_delay_ms:.2f} ms"
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."
