"""What is tried again, how often, where, and what the client is told in the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from harness import BODY, PATH, Harness, code_of
from scripted_upstream import (
    Reply,
    ScriptedUpstream,
    answer,
    hold,
    reset,
)


@pytest.mark.parametrize("status", [500, 503, 429, 502])
def test_refusals_and_failures_are_tried_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, status: int
) -> None:
    async def scenario() -> None:
        upstream.script = [answer(status), answer(status)]
        async with Harness([upstream], sqlite_url) as gateway:
            answered = await gateway.post()
        assert (answered.status, answered.body) == (200, b'{"n": 1}')
        assert len(upstream.seen) == 3
        assert len({one.key for one in upstream.seen}) == 1

    runner.run(scenario())


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_nothing_is_sent_again_by_the_http_library(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, method: str
) -> None:
    """HTTP calls these idempotent; whether they are sent twice is still for the gateway to say."""

    async def scenario() -> None:
        upstream.script = [reset(executes=True)]
        async with Harness([upstream], sqlite_url, on_unknown="fail") as gateway:
            answered = await gateway.post(method=method)
        assert code_of(answered) == "outcome_unknown"
        assert len(upstream.seen) == 1

    runner.run(scenario())


def test_mistakes_of_the_client_are_final(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [answer(400, '{"error": "no"}')]
        async with Harness([upstream], store_url) as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert (
            (first.status, first.body) == (second.status, second.body) == (400, b'{"error": "no"}')
        )
        assert len(upstream.seen) == 1

    runner.run(scenario())


def test_refusal_with_a_long_retry_after_is_passed_through(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [answer(429, '"busy"', {"Retry-After": "90"})]
        async with Harness([upstream], sqlite_url) as gateway:
            refused = await gateway.post()
            served = await gateway.post()
        assert (refused.status, refused.body) == (429, b'"busy"')
        assert refused.headers["Retry-After"] == "90"
        assert served.status == 200, "a refused request may be sent again with its key"

    runner.run(scenario())


def test_retry_after_is_waited_for(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [answer(503, headers={"Retry-After": "0.2"})]
        async with Harness([upstream], sqlite_url) as gateway:
            served = await gateway.post()
            waits = gateway.metric("takt_gateway_retry_wait_seconds_sum", service="default")
        assert served.status == 200
        assert waits >= 0.2

    runner.run(scenario())


def test_deadline_of_the_caller_ends_the_tries(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = answer(503, headers={"Retry-After": "5"})
        async with Harness([upstream], sqlite_url) as gateway:
            refused = await gateway.post(headers={"X-Request-Timeout-Ms": "4000"})
            bad = await gateway.post(headers={"X-Request-Timeout-Ms": "soon"})
            long = await gateway.post(headers={"X-Request-Timeout-Ms": "1" * 5000})
        assert refused.status == 503
        assert len(upstream.seen) == 1
        assert bad.status == long.status == 400

    runner.run(scenario())


def test_waiting_client_is_let_go_at_its_deadline_and_finds_the_answer_later(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = hold(answer())
        async with Harness([upstream], sqlite_url) as gateway:
            running = asyncio.create_task(gateway.post())
            await upstream.arrived.wait()
            let_go = await gateway.post(headers={"X-Request-Timeout-Ms": "50"})
            upstream.release.set()
            first = await running
            again = await gateway.post()
        assert (let_go.status, code_of(let_go)) == (504, "still_processing")
        assert first.body == again.body

    runner.run(scenario())


def test_request_without_a_key_is_only_tried_again_if_it_was_not_executed(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            upstream.script = [answer(503)]
            served = await gateway.post(None)
            upstream.script = [reset(executes=True)]
            broken = await gateway.post(None)
            upstream.script = [reset(executes=False)]
            listed = await gateway.post(None, path="/v1/models", method="GET", data=b"")
            twice = [await gateway.post(None), await gateway.post(None)]
        assert served.status == 200
        assert broken.status == 502
        assert listed.status == 200
        assert twice[0].body != twice[1].body

    runner.run(scenario())


def test_requests_fail_soon_when_the_budget_is_spent(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = answer(500)
        retry = {"budget_percent": 50, "min_retries_per_second": 0, "max_tries": 2}
        async with Harness([upstream], sqlite_url, retry=retry) as gateway:
            for number in range(6):
                await gateway.post(f"k{number}")
        assert len(upstream.seen) == 6 + 3

    runner.run(scenario())


def test_dead_letter_is_kept_told_and_answered_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    notices: list[dict[str, Any]] = []

    async def webhook(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        notices.append(json.loads(body))
        return web.Response()

    async def scenario() -> None:
        hook = ScriptedUpstream(default=webhook)
        await hook.start()
        upstream.default = answer(500, '"broken"')
        async with Harness(
            [upstream],
            store_url,
            retry={"max_tries": 3},
            policy={"dead_letter_webhook": hook.url + "/hook"},
        ) as gateway:
            first = await gateway.post(headers={"Authorization": "Bearer secret-1"})
            second = await gateway.post(headers={"Authorization": "Bearer secret-1"})
            letters = await gateway.parts.store.dead_letters(10)
            kept = await gateway.parts.store.request_of(letters[0].digest)
            while not notices:
                await asyncio.sleep(0.01)
        await hook.stop()
        assert (first.status, first.body) == (second.status, second.body) == (500, b'"broken"')
        assert len(upstream.seen) == 3
        assert [one.cause for one in letters[0].history] == ["status 500"] * 3
        assert kept is not None
        assert b"hello" in kept
        assert b"secret-1" not in kept
        assert notices[0]["digest"] == letters[0].digest
        assert "hello" not in str(notices)

    runner.run(scenario())


def test_fallback_upstream_has_the_last_word(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        spare = ScriptedUpstream(default=answer(text='"spare"'))
        await spare.start()
        upstream.default = answer(500)
        service = {"paths": ["/v1/*"], "upstreams": [upstream.url], "fallback": [spare.url]}
        async with Harness(
            [upstream, spare],
            sqlite_url,
            retry={"max_tries": 2},
            policy={"services": {"chat": service}},
        ) as gateway:
            answered = await gateway.post()
        await spare.stop()
        assert (answered.status, answered.body) == (200, b'"spare"')
        assert len(upstream.seen) == 2

    runner.run(scenario())


def test_retry_goes_to_another_upstream(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        other = ScriptedUpstream()
        await other.start()
        upstream.default = other.default = answer(500)
        async with Harness([upstream, other], sqlite_url, retry={"max_tries": 4}) as gateway:
            await gateway.post()
        await other.stop()
        assert [len(upstream.seen), len(other.seen)] == [2, 2]

    runner.run(scenario())


def test_unreachable_upstream_is_waited_for(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        port = int(upstream.url.rpartition(":")[2])
        await upstream.stop()
        async with Harness([upstream], sqlite_url) as gateway:
            health = await gateway.post(None, path="/health", method="GET", data=b"")
            impatient = await gateway.post("other", headers={"X-Request-Timeout-Ms": "100"})
            waiting = asyncio.create_task(gateway.post())
            await asyncio.sleep(0.1)
            await upstream.start(port)
            served = await waiting
        assert health.status == 503
        assert (impatient.status, impatient.headers["Retry-After"]) == (503, "1")
        assert served.status == 200

    runner.run(scenario())


def test_slow_answer_is_hedged(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        other = ScriptedUpstream()
        await other.start()
        one_slow: list[Reply] = []
        for number, scripted in enumerate((upstream, other)):
            one_slow.append(hold(answer(text=f'"slow {number}"')))
            scripted.default = answer(text=f'"fast {number}"')
            scripted.script = [one_slow[-1]]
        async with Harness([upstream, other], sqlite_url, retry={"hedge_after_ms": 30}) as gateway:
            # Whichever is asked first is slow; so is the second, once.
            hedged = asyncio.create_task(gateway.post())
            while len(upstream.seen) + len(other.seen) < 2:
                await asyncio.sleep(0.01)
            other.release.set()
            answered = await hedged
            hedges = gateway.metric("takt_gateway_hedges_total", service="default")
            assert all(one.num_in_flight == 0 for one in gateway.parts.router.upstreams.values())
        await other.stop()
        assert answered.body == b'"slow 1"'
        assert hedges == 1

    runner.run(scenario())


def test_draining_upstream_gets_nothing_new(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        other = ScriptedUpstream()
        await other.start()
        async with Harness([upstream, other], sqlite_url, admin_key="admin") as gateway:
            path = f"/gateway/drain?upstream={upstream.url}"
            refused = await gateway.post(None, path=path)
            headers = {"Authorization": "Bearer admin"}
            unknown = await gateway.post(None, path="/gateway/drain", headers=headers)
            drained = await gateway.post(None, path=path, headers=headers)
            for number in range(6):
                await gateway.post(f"k{number}")
            assert [len(upstream.seen), len(other.seen)] == [0, 6]
            path = path.replace("drain", "resume")
            await gateway.post(None, path=path, headers=headers)
            other.health_status = 503
            while gateway.parts.router.num_serving > 1:
                await asyncio.sleep(0.01)
            await gateway.post("last")
            assert len(upstream.seen) == 1
        await other.stop()
        assert [refused.status, unknown.status, drained.status] == [401, 404, 200]

    runner.run(scenario())


def test_dead_upstream_is_left_alone_by_its_breaker(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = answer(500)
        other = ScriptedUpstream()
        await other.start()
        async with Harness([upstream, other], sqlite_url) as gateway:
            for number in range(60):
                assert (await gateway.post(f"k{number}")).status == 200
            state = gateway.metric("takt_gateway_breaker_state", upstream=upstream.url)
        await other.stop()
        assert state > 0
        assert len(upstream.seen) < 30

    runner.run(scenario())


def test_headers_pass_end_to_end_and_no_further(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = answer(headers={"X-Request-Id": "r1", "Set-Cookie": "a=b"})
        async with Harness([upstream], sqlite_url) as gateway:
            sent = {"X-Mine": "1", "Accept-Encoding": "gzip", "Authorization": "Bearer t"}
            answered = await gateway.post(headers=sent, path=PATH + "?a=1%2F2")
        seen = upstream.seen[0]
        assert seen.headers["X-Mine"] == "1"
        assert seen.headers["Authorization"] == "Bearer t"
        assert seen.headers["Accept-Encoding"] == "identity"
        assert seen.path == PATH + "?a=1%2F2"
        assert json.loads(seen.body) == BODY
        assert answered.headers["X-Request-Id"] == "r1"
        assert "Set-Cookie" not in answered.headers

    runner.run(scenario())
