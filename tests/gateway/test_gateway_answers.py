"""One result per key, whatever happens between a client and an upstream."""

from __future__ import annotations

import asyncio
import json

import pytest
from harness import BODY, PATH, Harness
from scripted_upstream import (
    DONE,
    EVENTS,
    STREAM,
    ScriptedUpstream,
    answer,
    hold,
    reset,
    stream,
)


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_same_key_and_body_get_the_stored_answer(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url) as gateway:
            first = await gateway.post()
            spelled = json.dumps(dict(reversed(BODY.items())), indent=1).encode()
            second = await gateway.post(data=spelled)
        assert (first.status, first.body) == (200, b'{"n": 1}')
        assert not first.is_replay
        assert (second.status, second.body, second.is_replay) == (200, first.body, True)
        assert upstream.num_executed == 1
        assert upstream.seen[0].key == "k"

    runner.run(scenario())


def test_answer_outlives_the_gateway(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url) as gateway:
            first = await gateway.post()
        async with Harness([upstream], store_url) as gateway:
            second = await gateway.post()
        assert second.body == first.body
        assert second.headers["Content-Type"] == first.headers["Content-Type"]
        assert upstream.num_executed == 1

    runner.run(scenario())


def test_same_key_with_another_body_is_refused(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url) as gateway:
            await gateway.post()
            settled = await gateway.post(body=BODY | {"seed": 1})
            upstream.script = [hold(answer())]
            upstream.arrived.clear()
            running = asyncio.create_task(gateway.post("other"))
            await upstream.arrived.wait()
            joined = await gateway.post("other", body=BODY | {"seed": 1})
            upstream.release.set()
            await running
        assert [settled.status, joined.status] == [422, 422]
        assert code_of(settled.body) == code_of(joined.body) == "idempotency_key_reused"
        assert upstream.num_executed == 2

    runner.run(scenario())


def test_storm_of_one_request_is_one_execution(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = hold(answer())
        async with Harness([upstream], store_url) as gateway:
            storm = [asyncio.create_task(gateway.post()) for _ in range(5)]
            await upstream.arrived.wait()
            await asyncio.sleep(0.05)
            upstream.release.set()
            answers = await asyncio.gather(*storm)
        assert {one.body for one in answers} == {b'{"n": 1}'}
        assert sorted(one.is_replay for one in answers) == [False, True, True, True, True]
        assert upstream.num_executed == 1
        requests = "idempotent_request_total"
        assert gateway.metric(requests, service="default", status="success") == 1
        assert gateway.metric(requests, service="default", status="duplicate") == 4

    runner.run(scenario())


def test_stream_is_replayed_byte_for_byte(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream()
        async with Harness([upstream], store_url) as gateway:
            first = await gateway.post()
            second = await gateway.post()
        assert first.body == second.body == STREAM
        assert second.headers["Content-Type"] == "text/event-stream"
        assert second.is_replay
        assert upstream.num_executed == 1

    runner.run(scenario())


def test_running_stream_is_joined_half_way_on_this_and_on_another_gateway(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream(hold_before=2)
        begun = b"".join(EVENTS[:2])
        async with (
            Harness([upstream], store_url) as one,
            Harness([upstream], store_url) as other,
        ):
            headers = {"Idempotency-Key": "k"}
            first = await one.session.post(one.url + PATH, json=BODY, headers=headers)
            assert await first.content.readexactly(len(begun)) == begun
            joined = [
                await gateway.session.post(gateway.url + PATH, json=BODY, headers=headers)
                for gateway in (one, other)
            ]
            for response in joined:
                assert await response.content.readexactly(len(begun)) == begun
            upstream.release.set()
            rest = [await response.content.read() for response in (first, *joined)]
        assert set(rest) == {STREAM[len(begun) :]}
        assert upstream.num_executed == 1

    runner.run(scenario())


def test_answer_goes_on_for_the_retry_when_its_client_leaves(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream(hold_before=1)
        async with Harness([upstream], store_url) as gateway:
            headers = {"Idempotency-Key": "k"}
            first = await gateway.session.post(gateway.url + PATH, json=BODY, headers=headers)
            await first.content.readexactly(len(EVENTS[0]))
            first.close()
            await asyncio.sleep(0.05)
            upstream.release.set()
            second = await gateway.post()
        assert second.body == STREAM
        assert upstream.num_executed == 1

    runner.run(scenario())


def test_end_mark_is_withheld_until_the_answer_is_recorded(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream(hold_before=3)
        async with Harness([upstream], sqlite_url) as gateway:
            headers = {"Idempotency-Key": "k"}
            response = await gateway.session.post(gateway.url + PATH, json=BODY, headers=headers)
            await response.content.readexactly(len(b"".join(EVENTS[:3])))
            recorded = asyncio.Event()
            finish = gateway.parts.store.finish

            async def slow_finish(*arguments: object) -> bool:
                await recorded.wait()
                return await finish(*arguments)  # type: ignore[arg-type]

            gateway.parts.store.finish = slow_finish  # type: ignore[method-assign]
            upstream.release.set()
            assert await response.content.readexactly(len(EVENTS[3])) == EVENTS[3]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await response.content.readexactly(1)
            recorded.set()
            assert await response.content.read() == DONE

    runner.run(scenario())


def test_tenants_and_routes_never_share_a_key(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url) as gateway:
            answers = [
                await gateway.post(headers={"Authorization": "Bearer a"}),
                await gateway.post(headers={"Authorization": "Bearer b"}),
                await gateway.post(headers={"Authorization": "Bearer a"}, path="/v1/completions"),
            ]
        assert len({one.body for one in answers}) == 3
        assert upstream.num_executed == 3

    runner.run(scenario())


def test_keys_of_tenants_named_by_a_header_do_not_meet_at_the_upstream(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, tenant_header="X-Tenant") as gateway:
            await gateway.post(headers={"X-Tenant": "a"})
            await gateway.post(headers={"X-Tenant": "b"})
            missing = await gateway.post()
        keys = {one.key for one in upstream.seen}
        assert len(keys) == 2
        assert "k" not in keys
        assert missing.status == 400

    runner.run(scenario())


def test_business_id_is_a_key(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        options = {"business_id_field": "metadata.order", "business_id_header": "X-Order"}
        async with Harness([upstream], sqlite_url, **options) as gateway:
            body = BODY | {"metadata": {"order": 7}}
            first = await gateway.post(None, body)
            second = await gateway.post(None, body)
            other = await gateway.post(None, headers={"X-Order": "8"})
            again = await gateway.post(None, headers={"X-Order": "8"})
        assert first.body == second.body
        assert other.body == again.body != first.body
        assert upstream.num_executed == 2

    runner.run(scenario())


def test_store_that_is_away_means_503_and_no_execution(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, lease_ms=600) as gateway:
            await gateway.parts.store.close()
            refused = await gateway.post()
            while gateway.parts.keeper.is_store_up:
                await asyncio.sleep(0.01)
            health = await gateway.post(None, path="/health", method="GET")
            await gateway.parts.store.open()
            served = await gateway.post()
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "1"
        assert health.status == 503
        assert served.status == 200
        assert upstream.num_executed == 1

    runner.run(scenario())


def test_answer_waits_for_a_store_that_comes_back(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = hold(answer())
        async with Harness([upstream], sqlite_url) as gateway:
            running = asyncio.create_task(gateway.post())
            await upstream.arrived.wait()
            await gateway.parts.store.close()
            upstream.release.set()
            await asyncio.sleep(0.2)
            assert not running.done()
            await gateway.parts.store.open()
            first = await running
            second = await gateway.post()
        assert first.body == second.body == b'{"n": 1}'

    runner.run(scenario())


def test_another_gateway_takes_over_from_a_dead_one(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [hold(answer())]
        async with (
            Harness([upstream], store_url, lease_ms=600) as one,
            Harness([upstream], store_url, lease_ms=600) as other,
        ):
            lost = asyncio.create_task(one.post())
            await upstream.arrived.wait()
            await one.die()
            taken = await other.post()
            assert (taken.status, taken.body) == (200, b'{"n": 1}')
            assert other.metric("takt_gateway_takeovers_total", service="default") == 1
            unknown = "takt_gateway_unknown_outcomes_total"
            assert other.metric(unknown, service="default", action="retry") == 1
            lost.cancel()

    runner.run(scenario())


def test_unknown_outcome_of_a_dead_gateway_is_final_under_fail(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [hold(answer())]
        async with (
            Harness([upstream], store_url, on_unknown="fail", lease_ms=600) as one,
            Harness([upstream], store_url, on_unknown="fail", lease_ms=600) as other,
        ):
            lost = asyncio.create_task(one.post())
            await upstream.arrived.wait()
            await one.die()
            answers = [await other.post(), await other.post()]
            assert [one.status for one in answers] == [502, 502]
            assert {code_of(one.body) for one in answers} == {"outcome_unknown"}
            assert answers[0].body == answers[1].body
            assert len(upstream.seen) == 1
            unknown = "takt_gateway_unknown_outcomes_total"
            assert other.metric(unknown, service="default", action="fail") == 1
            lost.cancel()

    runner.run(scenario())


@pytest.mark.parametrize("on_unknown", ["retry", "fail"])
def test_connection_that_breaks_after_sending(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str, on_unknown: str
) -> None:
    async def scenario() -> None:
        upstream.script = [reset(executes=True)]
        async with Harness([upstream], store_url, on_unknown=on_unknown) as gateway:
            first = await gateway.post()
            second = await gateway.post()
        assert (first.status, first.body) == (second.status, second.body)
        if on_unknown == "retry":
            assert (first.status, upstream.num_executed) == (200, 2)
        else:
            assert (code_of(first.body), upstream.num_executed) == ("outcome_unknown", 1)
            assert first.headers["X-Should-Retry"] == "false"

    runner.run(scenario())


def test_client_that_asks_whether_to_send_its_body_is_told_to(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            port = int(gateway.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
                b"Idempotency-Key: k\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"{}")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close()

    runner.run(scenario())
