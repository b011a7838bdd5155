"""Moving KV between host and device at the ends of a request's life."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from takt.plan.errors import PlanInputError, require_positive
from takt.plan.simulate.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class KVTransfers:
    """Each request's prompt KV comes in before its first step, and all of its KV goes out at its
    end, over a full-duplex link.

    Synchronous: the step that first touches the request waits for its KV, and the one after its
    end for it to leave. Asynchronous: transfers run beside the steps, first come, first served,
    and a request joins the queue when its KV is there.
    """

    bytes_per_token: float
    link_bytes_per_s: float
    is_async: bool
    share: float = 1.0
    """Part of a context that is moved; the rest is computed or stays."""

    def __post_init__(self) -> None:
        require_positive("KV bytes per token", self.bytes_per_token)
        require_positive("the link's bytes per second", self.link_bytes_per_s)
        if not math.isfinite(self.share) or not 0 <= self.share <= 1:
            raise PlanInputError(f"the share of KV moved lies within 0 and 1, got {self.share}")

    def transfer_ns(self, num_tokens: int) -> float:
        return num_tokens * self.share * self.bytes_per_token / self.link_bytes_per_s * 1e9


def ready_times_ns(arrivals: Sequence[Arrival], transfers: KVTransfers | None) -> list[int]:
    """When each request can be scheduled: at its arrival unless its KV is fetched beside steps."""
    if transfers is None or not transfers.is_async:
        return [arrival.time_ns for arrival in arrivals]
    ready: list[int] = []
    link_free = 0.0
    for arrival in arrivals:
        start = max(link_free, float(arrival.time_ns))
        link_free = start + transfers.transfer_ns(arrival.num_prompt_tokens)
        ready.append(math.ceil(link_free))
    return ready
