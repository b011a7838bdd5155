"""What a request asks for, and what it would have alone on the server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from takt.errors import InvalidRequestError
from takt.scheduler.allowance import CONFIDENCE
from takt.scheduler.gap_risk import HEADROOM
from takt.scheduler.load_snapshot import LoadSnapshot, SnapshotModel
from takt.scheduler.prefill_budget import with_chunk
from takt.scheduler.slo import NS_PER_MS, SLO
from takt.scheduler.step_time import StepFeatures

UNATTAINABLE = "slo_unattainable"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as admission sees it."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    num_seqs: int
    priority: int
    slo: SLO
    """Its own targets, without the server's."""


class Alone(NamedTuple):
    """Latencies of a request that has the server to itself."""

    ttft_ms: float
    itl_ms: float
    """The longest gap, which is the last; 0 without any."""

    @classmethod
    def of(cls, ask: Ask, most_tokens: int, model: SnapshotModel, *, is_p99: bool = True) -> Alone:
        """With steps of at most `most_tokens` of a prompt; their P99, or what is expected.

        Of a prompt's steps one is as long as its P99, not all of them.
        """
        ttft_ns = excess_ns = 0.0
        start = 0
        nothing = StepFeatures(0, 0, 0, 0)
        while start < ask.num_prompt_tokens:
            chunk = min(ask.num_prompt_tokens - start, most_tokens)
            step = with_chunk(nothing, start, chunk)
            step_ns = model.predict_ns(step)
            ttft_ns += step_ns
            if is_p99:
                excess_ns = max(excess_ns, model.p99_ns(step) - step_ns)
            start += chunk
        if ask.max_tokens <= 1:
            return cls((ttft_ns + excess_ns) / NS_PER_MS, 0.0)
        num_kv = ask.num_seqs * (ask.num_prompt_tokens + ask.max_tokens)
        decode = StepFeatures(ask.num_seqs, 0, num_kv, num_kv)
        itl_ns = model.p99_ns(decode) if is_p99 else model.predict_ns(decode)
        return cls((ttft_ns + excess_ns) / NS_PER_MS, itl_ns / NS_PER_MS)


def check_attainable(
    ask: Ask, target: SLO, snapshot: LoadSnapshot, p99: Alone, refuses: bool
) -> None:
    """Raises `InvalidRequestError` for a target below what the request takes on an idle server.

    That is its P99 for the request's own targets. A server's own count only where it `refuses`, and
    against the time that is expected: what is too late on a machine that is disturbed for a while
    is refused for a while, and no mistake of the client's.
    """
    most_tokens = snapshot.max_num_batched_tokens
    for name, own_ns, target_ns, share in (
        ("itl_ms", ask.slo.itl_ns, target.itl_ns, HEADROOM),
        ("ttft_ms", ask.slo.ttft_ns, target.ttft_ns, CONFIDENCE),
    ):
        if target_ns is None or (own_ns is None and not refuses):
            continue
        asked_ms, best_ms = target_ns / NS_PER_MS, getattr(p99, name)
        if asked_ms >= best_ms:
            continue
        # With that it is let in on an idle server, now and after a few more steps.
        enough_ms = math.ceil(best_ms / share * 10) / 10
        if own_ns is None:
            expected = Alone.of(ask, most_tokens, SnapshotModel(snapshot), is_p99=False)
            best_ms = getattr(expected, name)
            if asked_ms >= best_ms:
                continue
        whose = f"slo.{name} is" if own_ns is not None else f"this server's {name} is"
        raise InvalidRequestError(
            f"{whose} {asked_ms:g}, and this request would take {best_ms:.2f} ms even alone "
            f"on the server: give slo.{name} of at least {enough_ms:g}",
            param=f"slo.{name}",
            code=UNATTAINABLE,
        )
