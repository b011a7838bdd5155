"""What the gateway decides, as functions of what is given."""

from __future__ import annotations

import asyncio
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takt.clock import ManualClock
from takt.errors import ConfigError, InvalidRequestError
from takt.gateway.breaker import MAX_COOL_DOWN_MS, Breaker, BreakerState
from takt.gateway.budget import RetryBudget
from takt.gateway.headers import head_of
from takt.gateway.http.fields import Headers
from takt.gateway.keys import KeyRules, request_key
from takt.gateway.options import GatewayOptions
from takt.gateway.policy import RetryPolicy, UpstreamConfig, build_policy, load_policy
from takt.gateway.retry import Failure, GiveUp, Outcome, Retry, backoff_ms, decide
from takt.gateway.router import Router
from takt.gateway.states import State
from takt.gateway.store.open import make_store
from takt.gateway.upstream import Upstream
from takt.idempotency import fingerprint

REFUSED = Failure(kind="status", outcome=Outcome.NOT_EXECUTED, cause="status 503", status=503)
LOST = Failure(kind="reset", outcome=Outcome.UNKNOWN, cause="reset")


def highest(low: float, high: float) -> float:
    return high


def decided(failure: Failure, **changes: object) -> Retry | GiveUp:
    values = {
        "num_tries": 1,
        "remaining_ms": 60_000,
        "may_repeat": True,
        "withdraw": lambda: True,
        "uniform": highest,
    }
    return decide(RetryPolicy(), failure, **(values | changes))  # type: ignore[arg-type]


def test_waits_follow_their_strategy() -> None:
    def waits(**policy: object) -> list[int]:
        made = RetryPolicy(base_ms=100, cap_ms=500, **policy)  # type: ignore[arg-type]
        return [backoff_ms(made, tries, highest) for tries in (1, 2, 3, 4, 40)]

    assert waits() == [100, 200, 400, 500, 500]
    assert waits(strategy="linear") == [100, 200, 300, 400, 500]
    assert waits(strategy="fixed") == [100, 100, 100, 100, 100]


def test_jitter_fills_the_whole_range() -> None:
    rng = random.Random(1)
    waits = [backoff_ms(RetryPolicy(base_ms=1000), 1, rng.uniform) for _ in range(500)]
    assert min(waits) < 50
    assert max(waits) > 950


@pytest.mark.parametrize(
    ("failure", "changes", "expected"),
    [
        (REFUSED, {}, Retry(250)),
        (REFUSED, {"num_tries": 6}, GiveUp(State.DEAD, "status 503")),
        (REFUSED, {"remaining_ms": 250}, GiveUp(State.FAILED_RETRYABLE, "deadline")),
        (REFUSED, {"withdraw": lambda: False}, GiveUp(State.FAILED_RETRYABLE, "budget")),
        (LOST, {}, Retry(250)),
        (LOST, {"may_repeat": False}, GiveUp(State.FAILED_FINAL, "outcome_unknown")),
    ],
)
def test_decisions(failure: Failure, changes: dict[str, object], expected: object) -> None:
    assert decided(failure, **changes) == expected


def test_retry_after_is_a_lower_bound_with_jitter_above_it() -> None:
    refused = Failure(
        kind="status", outcome=Outcome.NOT_EXECUTED, cause="", status=503, retry_after_ms=2000
    )
    assert decided(refused) == Retry(2250)
    assert decided(refused, uniform=lambda low, high: low) == Retry(2000)


def test_budget_allows_a_share_of_traffic_and_a_small_rate() -> None:
    clock = ManualClock()
    budget = RetryBudget(10.0, 1.0, clock)
    assert sum(budget.withdraw() for _ in range(20)) == 10, "saved up at the start"
    for _ in range(55):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(20)) == 5
    clock.advance(3_000_000_000)
    assert sum(budget.withdraw() for _ in range(20)) == 3


def test_breaker_opens_probes_and_closes() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, highest)
    for _ in range(9):
        breaker.begin()
        breaker.failure()
    assert breaker.state is BreakerState.CLOSED
    breaker.failure()
    assert breaker.state is BreakerState.OPEN
    assert not breaker.can_pass
    clock.advance(breaker.wait_ms * 1_000_000)
    assert breaker.can_pass
    breaker.begin()
    assert not breaker.can_pass, "one probe at a time"
    breaker.failure()
    assert breaker.wait_ms == 500
    for _ in range(6):
        clock.advance(breaker.wait_ms * 1_000_000)
        breaker.begin()
        breaker.failure()
    assert breaker.wait_ms == MAX_COOL_DOWN_MS
    clock.advance(breaker.wait_ms * 1_000_000)
    breaker.begin()
    breaker.success()
    assert breaker.state is BreakerState.CLOSED


def upstream(url: str, *, latency_ns: int, in_flight: int = 0) -> Upstream:
    made = Upstream(UpstreamConfig(url=url), ManualClock(), highest)
    made.is_healthy = True
    made.success(latency_ns)
    made.num_in_flight = in_flight
    return made


def test_router_prefers_the_lower_predicted_latency() -> None:
    fast, slow = upstream("http://f", latency_ns=10), upstream("http://s", latency_ns=30)
    router = Router([fast, slow], random.Random(1))
    urls = ("http://f", "http://s")
    assert router.choose(urls) is fast
    fast.num_in_flight = 5
    assert router.choose(urls) is slow
    assert router.choose(urls, avoid="http://s") is fast
    assert router.choose(urls, prefer="http://f") is fast
    fast.is_healthy = False
    assert router.choose(urls, prefer="http://f") is slow
    assert router.choose(urls, avoid="http://s") is slow
    slow.is_draining = True
    assert router.choose(urls) is None


def test_router_spreads_over_many() -> None:
    many = [upstream(f"http://u{i}", latency_ns=10 + i) for i in range(5)]
    router = Router(many, random.Random(1))
    chosen = {router.choose([one.url for one in many]) for _ in range(200)}
    assert len(chosen) == 4, "the worst of all never wins a draw of two"


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(JSON, st.randoms())
def test_fingerprint_ignores_spelling(value: object, rng: random.Random) -> None:
    def shuffled(one: object) -> object:
        if isinstance(one, dict):
            items = [(key, shuffled(inner)) for key, inner in one.items()]
            rng.shuffle(items)
            return dict(items)
        return [shuffled(inner) for inner in one] if isinstance(one, list) else one

    plain = json.dumps(value).encode()
    other = json.dumps(shuffled(value), indent=2, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    assert fingerprint(plain) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b'{"t": 1.0}', b'{"t": 1}', True),
        (b'{"t": 1e2}', b'{"t": 100}', True),
        (b'{"t": 0.1}', b'{"t": 0.10}', True),
        (b"[1, 2]", b"[2, 1]", False),
        (b'{"s": 9007199254740993}', b'{"s": 9007199254740992}', False),
        (b'{"s": null}', b"{}", False),
        (b"not json", b"not  json", False),
        (b"[" * 5000, b"[" * 5000, True),
    ],
)
def test_fingerprints_compare_meaning(one: bytes, other: bytes, equal: bool) -> None:
    assert (fingerprint(one) == fingerprint(other)) is equal
    assert fingerprint(one) != fingerprint(one, "a=1")
    assert fingerprint(one) != fingerprint(one, secret=b"s")


def key_of(headers: dict[str, str], body: bytes = b"{}", rules: KeyRules | None = None) -> str:
    key = request_key(
        method="POST", path="/", query="", headers=headers, body=body, service="s", tenant="t",
        rules=rules or KeyRules(),
    )  # fmt: skip
    assert key is not None
    return key.identity.digest


def test_keys_bare_or_quoted_are_the_same_and_a_business_id_is_another() -> None:
    bare = key_of({"Idempotency-Key": "7"})
    assert key_of({"Idempotency-Key": '"7"'}) == bare
    rules = KeyRules(business_id_field="id")
    assert key_of({}, b'{"id": "7"}', rules) == key_of({}, b'{"id": 7}', rules) != bare
    with pytest.raises(InvalidRequestError, match="string or an integer"):
        key_of({}, b'{"id": [1]}', rules)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ({"retry": {"max_trys": 3}}, "max_trys"),
        ({"retry": {"max_tries": 0}}, "max_tries"),
        ({"retry": {"strategy": "guess"}}, "guess"),
        ({"ttl": {"dead": 0}}, "dead"),
        ({"ttls": {}}, "ttls"),
        ({"upstreams": [{"url": "http://a", "dedup": True}]}, "dedup"),
        ({"services": {"chat": {"paths": ["/c"], "upstreams": ["http://b"]}}}, "http://b"),
        ({"services": {"chat": {}}}, "no paths"),
        ({"services": {"default": {"paths": ["/c"]}}}, "default"),
        ({"services": {"chat": {"paths": ["c"]}}}, "begin with /"),
        ({"services": {"a": {"paths": ["/c"]}, "b": {"paths": ["/c"]}}}, "twice"),
        ({"retry": {"retry_statuses": [200]}}, "retry_statuses"),
        ({"retry": {"budget_percent": math.nan}}, "budget_percent"),
        ({"retry": {"min_retries_per_second": math.inf}}, "min_retries_per_second"),
        ({"retry": {"deadline_ms": 10**18}}, "deadline_ms"),
        ({"retry": {"patience_ms": -1}}, "patience_ms"),
        ({"ttl": {"succeeded": 10**17}}, "succeeded"),
        ({"upstreams": [{"url": "http://a/"}, {"url": "http://a"}]}, "twice"),
        ({"upstreams": [{"url": "http://a?x=1"}]}, "without"),
        ({"upstreams": [{"url": "http://a", "health_path": "health"}]}, "health_path"),
        ({"upstreams": [{"url": "http://a", "health_path": "/a b\r\nX: y"}]}, "health_path"),
        ({"upstreams": [{"url": "http://a", "health_path": "/\u00fc"}]}, "health_path"),
        ({"dead_letter_webhook": "nonsense"}, "dead_letter_webhook"),
        ({"services": {"chat": {"routes": [{"path": "/x", "retry": {"no": 1}}]}}}, "`no`"),
    ],
)
def test_mistakes_in_a_policy_are_named(table: dict[str, object], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        build_policy(table, ("http://a",), "policy.toml")


def test_routes_inherit_from_their_service_and_that_from_the_file() -> None:
    table = {
        "retry": {"base_ms": 1, "max_tries": 2},
        "services": {
            "chat": {
                "paths": ["/v1/chat/*"],
                "retry": {"max_tries": 3},
                "routes": [{"path": "/v1/chat/completions", "retry": {"cap_ms": 9}}],
            }
        },
    }
    policy = build_policy(table, ("http://a",), "policy.toml")
    routes = [policy.route_of(p) for p in ("/v1/chat/completions", "/v1/chat/x", "/v1/models")]
    assert [one.service for one in routes] == ["chat", "chat", "default"]
    assert [one.retry.max_tries for one in routes] == [3, 3, 2]
    assert [one.retry.cap_ms for one in routes] == [9, 10_000, 10_000]
    assert {one.retry.base_ms for one in routes} == {1}


def test_hop_by_hop_headers_end_here() -> None:
    fields = [("Connection", "X-Hop"), ("X-Hop", "1"), ("Date", "now"), ("X-End", "2")]
    head = head_of(200, Headers(fields))
    assert head.headers == [("X-End", "2")]


@pytest.mark.parametrize("url", ["h", "ftp://h", "http://", "http://[::1", "http://h:99999"])
def test_an_upstream_that_is_no_url_is_a_mistake_of_the_users(url: str) -> None:
    with pytest.raises(ConfigError, match="must be http://HOST"):
        GatewayOptions(upstream=(url,))
    with pytest.raises(ConfigError, match="must be http://HOST"):
        build_policy({"upstreams": [{"url": url}]}, (), "policy.toml")


def test_no_message_shows_the_secret_of_a_mistaken_url() -> None:
    secret = "hunter2"
    closed = "redis://127.0.0.1:9/0"
    mistakes = (
        lambda: GatewayOptions(upstream=(f"http://me:{secret}@host",)),
        lambda: build_policy({"upstreams": [{"url": f"http://me:{secret}@host"}]}, (), "policy"),
        lambda: build_policy(
            {"dead_letter_webhook": f"x://host?{secret}"}, ("http://a",), "policy"
        ),
        lambda: make_store(f"redi://:{secret}@host"),
        lambda: make_store(f"redis://:{secret}/x@host:port/0"),
        lambda: make_store(f"redis://host/0?nothing={secret}"),
        lambda: make_store(f"redis://:half?{secret}@host/0"),
        lambda: asyncio.run(make_store(f"{closed}?password=a@{secret}").open()),
        lambda: asyncio.run(make_store(f"{closed}?password={secret}").open()),
        lambda: asyncio.run(make_store(f"{closed}#a@{secret}").open()),
        lambda: asyncio.run(make_store(closed.replace("//", f"//me:{secret}@")).open()),
    )
    for mistake in mistakes:
        with pytest.raises(ConfigError) as raised:
            mistake()
        assert secret not in str(raised.value)


def test_an_upstream_is_the_same_with_and_without_a_slash_at_its_end() -> None:
    table = {
        "upstreams": [{"url": "http://a/", "deduplicates": True}],
        "services": {"chat": {"paths": ["/c"], "upstreams": ["http://a/"]}},
    }
    policy = build_policy(table, ("http://a",), "policy")
    assert [(one.url, one.deduplicates) for one in policy.upstreams] == [("http://a", True)]
    assert {url for route in policy.routes for url in route.upstreams} == {"http://a"}


@pytest.mark.parametrize("name", ["rate_limit", "drain_timeout_seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_an_option_that_is_no_usable_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        GatewayOptions(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", [b"\xff", b"a = ", b"a = " + b"[" * 5000, b"a = " + b"1" * 5000], ids=range(4)
)
def test_a_policy_that_cannot_be_read_is_a_mistake_of_the_users(
    tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"policy\.toml is not TOML"):
        load_policy(path)
