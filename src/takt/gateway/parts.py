"""What a gateway is made of, made once at its start."""

from __future__ import annotations

import random
from dataclasses import dataclass

from takt.clock import Clock
from takt.gateway.attempt import UpstreamClient
from takt.gateway.budget import RetryBudget
from takt.gateway.dead_letter_notices import DeadLetterNotices
from takt.gateway.keeper import LeaseKeeper
from takt.gateway.metrics import GatewayMetrics
from takt.gateway.options import GatewayOptions
from takt.gateway.policy import Policy, Route
from takt.gateway.router import Router
from takt.gateway.sealing import Sealer
from takt.gateway.states import OnUnknown
from takt.gateway.store.base import Store
from takt.gateway.tracing import Tracing

_ON_UNKNOWN = {one.value: one for one in OnUnknown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    options: GatewayOptions
    policy: Policy
    store: Store
    sealer: Sealer
    router: Router
    client: UpstreamClient
    keeper: LeaseKeeper
    budgets: dict[str, RetryBudget]
    """By the route's name."""
    notices: DeadLetterNotices
    metrics: GatewayMetrics
    tracing: Tracing
    clock: Clock
    rng: random.Random

    def on_unknown(self, route: Route) -> OnUnknown:
        return route.retry.on_unknown or _ON_UNKNOWN[self.options.on_unknown]
