"""Makes a gateway's parts from its options. Everything that can be wrong is found here."""

from __future__ import annotations

import random
from pathlib import Path

from prometheus_client import CollectorRegistry

from takt.clock import MonotonicClock
from takt.errors import ConfigError
from takt.gateway.attempt import UpstreamClient
from takt.gateway.budget import RetryBudget
from takt.gateway.dead_letter_notices import DeadLetterNotices
from takt.gateway.keeper import LeaseKeeper
from takt.gateway.metrics import GatewayMetrics
from takt.gateway.options import GatewayOptions
from takt.gateway.parts import Parts
from takt.gateway.policy import Policy, load_policy
from takt.gateway.router import Router
from takt.gateway.sealing import make_sealer
from takt.gateway.states import OnUnknown
from takt.gateway.store.open import make_store
from takt.gateway.tracing import NoTracing, Tracing
from takt.gateway.upstream import Upstream


async def build_parts(options: GatewayOptions, given: Policy | None = None) -> Parts:
    """Opens the store. Raises `ConfigError`, and then nothing is left open.

    `given` stands in for the policy file.
    """
    file = None if options.policy is None else Path(options.policy)
    policy = given or load_policy(file, options.upstream)
    _check_hedging(policy, options)
    sealer = make_sealer(options.bodies_at_rest, options.encryption_key_file)
    clock, rng = MonotonicClock(), random.Random()
    upstreams = [Upstream(config, clock, rng.uniform) for config in policy.upstreams]
    client = UpstreamClient()
    try:
        for upstream in upstreams:
            client.origin_of(upstream)
        tracing = _make_tracing(options)
        store = make_store(options.store_url, volatile=options.store_volatile)
        await store.open()
    except BaseException:
        await client.close()
        raise
    metrics = _make_metrics(policy, upstreams)
    return Parts(
        options=options,
        policy=policy,
        store=store,
        sealer=sealer,
        router=Router(upstreams, rng),
        client=client,
        keeper=LeaseKeeper(store, options.lease_ms, clock, metrics),
        budgets={
            route.name: RetryBudget(
                route.retry.budget_percent, route.retry.min_retries_per_second, clock
            )
            for route in policy.routes
        },
        notices=DeadLetterNotices(client, policy.dead_letter_webhook),
        metrics=metrics,
        tracing=tracing,
        clock=clock,
        rng=rng,
    )


async def close_parts(parts: Parts) -> None:
    await parts.notices.close()
    await parts.client.close()
    await parts.store.close()
    parts.tracing.close()


def _make_metrics(policy: Policy, upstreams: list[Upstream]) -> GatewayMetrics:
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.watch_upstreams(upstreams)
    for service in {route.service for route in policy.routes}:
        metrics.watch_service(service)
    metrics.store_up.set(1)
    return metrics


def _make_tracing(options: GatewayOptions) -> Tracing:
    if options.otlp_endpoint is None:
        return NoTracing()
    try:
        from takt.gateway.otel_tracing import OtelTracing
    except ImportError:
        raise ConfigError("--otlp-endpoint needs the extra: make install EXTRA=otel") from None
    return OtelTracing(options.otlp_endpoint)


def _check_hedging(policy: Policy, options: GatewayOptions) -> None:
    """A hedge is a second execution, which `fail` promises never to make."""
    for route in policy.routes:
        on_unknown = route.retry.on_unknown or OnUnknown(options.on_unknown)
        if route.retry.hedge_after_ms is not None and on_unknown is OnUnknown.FAIL:
            raise ConfigError(
                f"hedge_after_ms of {route.name} sends a request twice, which on_unknown fail "
                "rules out; drop the one or the other"
            )
