"""The order of prompts: by deadline, with a term for their work."""

from __future__ import annotations

from takt.scheduler.request import Request
from takt.scheduler.slo import SLO

WORK_WEIGHT = 4.0
"""A prompt stands behind later ones by so many times its own computing time: short ones, which
are many, pass a long one, but only for a while that is bounded by its length."""

RELEGATION = 1
"""A request that missed its deadline stands behind those of so many targets later: they can still
be in time, and none that comes later passes it. More of it keeps more of them in time where the
load is too much for long, and makes the others' P99 worse where it is so for a moment."""

NO_TTFT_NS = 1_000_000_000
"""Stands in for a target of TTFT where there is none."""

_MAX_PRIORITY = 100


def deadline_order(
    arrival_ns: int,
    ttft_ns: int | None,
    priority: int,
    num_prompt_tokens: int,
    prefill_token_ns: float,
) -> int:
    """A request's place among prompts, in nanoseconds; smaller goes first."""
    target_ns = ttft_ns or NO_TTFT_NS
    work_ns = WORK_WEIGHT * prefill_token_ns * num_prompt_tokens
    return arrival_ns + target_ns * target_weight(priority) + round(work_ns)


def target_weight(priority: int) -> int:
    """How much later a place is for a target that is later by one; 0 or less with a priority of -1
    or less, which no target moves back."""
    return 1 + min(max(priority, -_MAX_PRIORITY), _MAX_PRIORITY)


class Deadlines:
    """Requests' targets, the server's where they have none, and what follows from them."""

    def __init__(self, slo: SLO, prefill_token_ns: float) -> None:
        """Of a token of a prompt that has the machine to itself."""
        self._slo = slo
        self._prefill_token_ns = prefill_token_ns

    def ttft_ns(self, request: Request) -> int:
        return request.slo.ttft_ns or self._slo.ttft_ns or NO_TTFT_NS

    def itl_ns(self, request: Request) -> int | None:
        return self._slo.itl_ns if request.slo.itl_ns is None else request.slo.itl_ns

    def order(self, request: Request) -> int:
        return deadline_order(
            request.arrival_ns,
            self.ttft_ns(request),
            request.priority,
            request.num_prompt_tokens,
            self._prefill_token_ns,
        )

    def is_late(self, request: Request, now_ns: int) -> bool:
        """Whether its first token is overdue."""
        if request.num_output_tokens > 0:
            return False
        return now_ns > request.arrival_ns + self.ttft_ns(request)

    def relegated(self, request: Request, now_ns: int) -> tuple[int, ...] | None:
        """Its new place, if even alone on the machine its first token would come too late."""
        if request.num_output_tokens > 0:
            return None
        ttft_ns = self.ttft_ns(request)
        num_left = request.num_prompt_tokens - request.num_computed_tokens
        if now_ns + num_left * self._prefill_token_ns <= request.arrival_ns + ttft_ns:
            return None
        order = self.order(request) + RELEGATION * ttft_ns
        return (order, *request.order_key[1:]) if request.order_key[0] < order else None
