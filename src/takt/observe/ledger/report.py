"""The ledger as plain data: what `GET /slo` answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from takt.observe.ledger.causes import Cause
from takt.observe.ledger.late_tokens import LateToken
from takt.observe.ledger.ledger import Ledger, Totals
from takt.observe.ledger.windows import Latencies, Window

NUM_WORST = 10


def report(ledger: Ledger, now_ns: int, num_worst: int = NUM_WORST) -> dict[str, Any]:
    """All of it since the start, the last windows, and the worst tokens that are still held.

    `written_ns` is on the machine's monotonic clock.
    Times are milliseconds; shares are of 1. `late_ms` is the time of late tokens beyond their base,
    and the shares of the causes are of it.
    """
    ledger.settle()
    whole = ledger.windows.whole()
    seconds = (now_ns - whole.begin_ns) / 1e9
    gap_target_ms, ttft_target_ms = ledger.gap_target_ns / 1e6, ledger.ttft_target_ns / 1e6
    windows = [*ledger.windows.past, ledger.windows.current]
    return {
        "targets": {
            "itl_p99_ms": round(gap_target_ms, 3),
            "itl_is_given": ledger.slo.itl_p99_ms is not None,
            "ttft_p99_ms": round(ttft_target_ms, 3),
            "ttft_is_given": ledger.slo.ttft_p99_ms is not None,
        },
        "since_seconds": round(seconds, 1),
        "itl": _latencies(whole.itl, gap_target_ms),
        "ttft": _latencies(whole.ttft, ttft_target_ms),
        "goodput": {
            "num_requests": whole.num_requests,
            "num_good": whole.num_good_requests,
            "share": _share(whole),
            "requests_per_second": round(whole.num_good_requests / max(seconds, 1e-9), 4),
        },
        "binding": binding_constraint(ledger, whole),
        "late_gaps": _totals(ledger.late_gaps) | {"num_not_split": ledger.num_lost},
        "late_first_tokens": _totals(ledger.late_first_tokens),
        "worst_gaps": _worst(ledger.kept_gaps, num_worst, now_ns),
        "worst_first_tokens": _worst(ledger.kept_first_tokens, num_worst, now_ns),
        "windows": [_window(window, now_ns) for window in windows if not window.is_empty],
        "step": {
            "solo_ms": round(ledger.steps.solo_p50_ns / 1e6, 4),
            "host_ms": round(ledger.steps.host_p50_ns / 1e6, 4),
            "prediction_error": ledger.steps.learned.error,
        },
    }


def binding_constraint(ledger: Ledger, whole: Window) -> dict[str, Any] | None:
    """The target with the least room, and the cause that takes most of what is late; None of
    nothing seen."""
    rooms = []
    for name, latencies, target_ns, totals in (
        ("itl", whole.itl, ledger.gap_target_ns, ledger.late_gaps),
        ("ttft", whole.ttft, ledger.ttft_target_ns, ledger.late_first_tokens),
    ):
        p99 = latencies.percentile_ms(99)
        if p99 is not None:
            rooms.append((1 - p99 * 1e6 / target_ns, name, totals))
    if not rooms:
        return None
    room, name, totals = min(rooms, key=lambda entry: entry[0])
    return {"slo": name, "margin_share": round(room, 4), "cause": top_cause(totals)}


def top_cause(totals: Totals) -> str | None:
    """The cause of most late time, the base aside."""
    if totals.late_ns <= 0:
        return None
    return max((c for c in Cause if c is not Cause.BASE), key=lambda c: totals.split_ns[c]).label


def _latencies(latencies: Latencies, target_ms: float) -> dict[str, Any]:
    p99 = latencies.percentile_ms(99)
    return {
        "num": latencies.num,
        "num_late": latencies.num_late,
        "attainment": _rounded(latencies.share_in_time, 6),
        "p50_ms": _rounded(latencies.percentile_ms(50), 3),
        "p99_ms": _rounded(p99, 3),
        "margin_ms": None if p99 is None else round(target_ms - p99, 3),
        "is_held": latencies.is_held,
    }


def _totals(totals: Totals) -> dict[str, Any]:
    late_ns = totals.late_ns
    return {
        "num": totals.num,
        "late_ms": round(late_ns / 1e6, 3),
        "unexplained_share": round(totals.unexplained_share, 6),
        "causes": {
            cause.label: {
                "ms": round(float(totals.split_ns[cause]) / 1e6, 3),
                "share": None
                if cause is Cause.BASE or late_ns <= 0
                else round(float(totals.split_ns[cause]) / late_ns, 6),
            }
            for cause in Cause
        },
    }


def _worst(tokens: Iterable[LateToken], num: int, now_ns: int) -> list[dict[str, Any]]:
    """Those that are most beyond their targets."""
    ordered = sorted(tokens, key=lambda token: token.target_ns - token.late_ns)
    return [
        {
            "request_id": token.request_id,
            "choice": token.choice,
            "token": token.position,
            "written_ns": token.at_ns,
            "age_seconds": round((now_ns - token.at_ns) / 1e9, 3),
            "ms": round(token.late_ns / 1e6, 3),
            "target_ms": round(token.target_ns / 1e6, 3),
            "causes": {
                cause.label: round(float(token.split_ns[cause]) / 1e6, 3)
                for cause in Cause
                if token.split_ns[cause] >= 500
            },
        }
        for token in ordered[:num]
    ]


def _window(window: Window, now_ns: int) -> dict[str, Any]:
    return {
        "age_seconds": round((now_ns - window.begin_ns) / 1e9, 1),
        "num_gaps": window.itl.num,
        "num_late_gaps": window.itl.num_late,
        "itl_p99_ms": _rounded(window.itl.percentile_ms(99), 3),
        "itl_is_held": window.itl.is_held,
        "num_first_tokens": window.ttft.num,
        "num_late_first_tokens": window.ttft.num_late,
        "ttft_p99_ms": _rounded(window.ttft.percentile_ms(99), 3),
        "ttft_is_held": window.ttft.is_held,
        "num_requests": window.num_requests,
        "num_good_requests": window.num_good_requests,
    }


def _share(window: Window) -> float | None:
    if not window.num_requests:
        return None
    return round(window.num_good_requests / window.num_requests, 6)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
