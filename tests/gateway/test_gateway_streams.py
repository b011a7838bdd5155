"""Streams that break: ended with an error, tried again, or resumed where that is exact."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from harness import Answered, Harness
from scripted_upstream import (
    DONE,
    EVENTS,
    STREAM,
    ScriptedUpstream,
    stream,
)

from takt.gateway.http import upstream_connection

BEGUN = b"".join(EVENTS[:2])


MORE = b""
"""Stands for what should follow an event, and does not come."""


def code_of(answered: Answered) -> str:
    return str(json.loads(answered.body)["error"]["code"])


def test_broken_stream_ends_with_an_error_event_and_no_end_mark(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream(break_after=2)]
        async with Harness([upstream], store_url, on_unknown="fail") as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert first.body.startswith(BEGUN)
        event = json.loads(first.body[len(BEGUN) :].removeprefix(b"data: "))
        assert event["error"]["type"] == "gateway_error"
        assert DONE not in first.body
        assert second.body == first.body, "executed in part, it is not executed again"
        assert len(upstream.seen) == 1

    runner.run(scenario())


def test_stream_that_ends_without_its_mark_is_broken(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream(EVENTS)]
        async with Harness([upstream], sqlite_url) as gateway:
            first = await gateway.post()
            upstream.default = stream()
            second = await gateway.post()
        assert b"error" in first.body
        assert second.body == STREAM, "under retry the key may be used again"

    runner.run(scenario())


def test_stream_of_nothing_but_an_error_is_tried_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream([b'data: {"error": {"message": "engine died"}}\n\n'])]
        upstream.default = stream()
        async with Harness([upstream], sqlite_url) as gateway:
            answered = await gateway.post()
        assert answered.body == STREAM

    runner.run(scenario())


ERROR_EVENT = b'data: {"error": {"message": "the engine died"}}\n\n'


def test_stream_that_ends_with_an_error_is_no_success_even_with_an_end_mark(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    """Takt and vLLM send `[DONE]` after the error."""

    async def scenario() -> None:
        upstream.script = [stream((*EVENTS[:2], ERROR_EVENT, DONE))]
        upstream.default = stream()
        async with Harness([upstream], store_url) as gateway:
            first, second = await gateway.post(), await gateway.post()
            failed = gateway.metric("idempotent_request_total", service="default", status="failed")
        assert first.body.startswith(BEGUN + ERROR_EVENT)
        assert DONE not in first.body
        assert second.body == STREAM, "under retry the key may be used again"
        assert failed == 1

    runner.run(scenario())


def test_stream_that_told_of_an_error_is_final_where_nothing_is_executed_twice(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream((*EVENTS[:2], ERROR_EVENT, DONE))]
        async with Harness([upstream], sqlite_url, on_unknown="fail") as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert first.body == second.body
        assert b'"failed_final"' in first.body
        assert len(upstream.seen) == 1

    runner.run(scenario())


@pytest.mark.parametrize("on_unknown", ["retry", "fail"])
def test_broken_stream_is_resumed_where_the_upstream_gives_the_same_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, on_unknown: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream(break_after=2)]
        upstream.default = stream()
        async with Harness(
            [upstream], sqlite_url, deduplicates=True, on_unknown=on_unknown
        ) as gateway:
            answered, again = await gateway.post(), await gateway.post()
        assert answered.body == again.body == STREAM
        assert len(upstream.seen) == 2

    runner.run(scenario())


def test_stream_that_does_not_continue_exactly_is_not_resumed(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream(break_after=2)]
        upstream.default = stream((EVENTS[0], b"data: other\n\n", DONE))
        async with Harness([upstream], sqlite_url, deduplicates=True) as gateway:
            answered = await gateway.post()
        assert answered.body.startswith(BEGUN)
        assert b"stream_lost" in answered.body
        assert DONE not in answered.body

    runner.run(scenario())


@pytest.mark.parametrize("sends_done", [True, False])
def test_stream_without_end_mark_is_whole_only_from_an_upstream_known_for_it(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, sends_done: bool
) -> None:
    async def scenario() -> None:
        upstream.default = stream(EVENTS)
        policy = {"upstreams": [{"url": upstream.url, "sends_done": sends_done}]}
        async with Harness([upstream], sqlite_url, policy=policy) as gateway:
            answered, again = await gateway.post(), await gateway.post()
        assert (answered.body == b"".join(EVENTS)) is not sends_done
        if sends_done:
            assert b'"error"' in answered.body
        else:
            assert again.is_replay and again.body == answered.body
            assert upstream.num_executed == 1

    runner.run(scenario())


def test_what_follows_an_end_mark_is_given_where_none_is_expected(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    events = (*EVENTS, DONE, b"data: more\n\n", b"data: [DONE]")

    async def scenario() -> None:
        upstream.default = stream(events)
        policy = {"upstreams": [{"url": upstream.url, "sends_done": False}]}
        async with Harness([upstream], sqlite_url, policy=policy) as gateway:
            answered = await gateway.post()
        assert answered.body == b"".join(events)

    runner.run(scenario())


def test_broken_stream_is_not_taken_for_whole_where_no_end_mark_is_expected(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream(EVENTS, break_after=1)
        policy = {"upstreams": [{"url": upstream.url, "sends_done": False}]}
        async with Harness([upstream], sqlite_url, policy=policy) as gateway:
            answered = await gateway.post()
        assert b'"error"' in answered.body

    runner.run(scenario())


@pytest.mark.parametrize("on_unknown", ["retry", "fail"])
def test_stream_that_breaks_behind_its_end_mark_is_whole(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str, on_unknown: str
) -> None:
    async def scenario() -> None:
        upstream.script = [stream((*EVENTS, DONE, MORE), break_after=5)]
        async with Harness([upstream], store_url, on_unknown=on_unknown) as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert first.body == second.body == STREAM
        assert second.is_replay and upstream.num_executed == 1

    runner.run(scenario())


@pytest.mark.parametrize(
    ("mark", "given"),
    [
        (b"data: [DONE]\n", b"data: [DONE]\n\n"),
        (b"data: [DONE]\r\n", b"data: [DONE]\r\n\r\n"),
        (b"data: [DONE]\r", b"data: [DONE]\r\n\r\n"),
        (b"data:[DONE]\n\n: by", b"data:[DONE]\n\n: by\n\n"),
    ],
)
def test_end_that_is_cut_behind_the_marks_line_is_given_whole(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, mark: bytes, given: bytes
) -> None:
    async def scenario() -> None:
        upstream.script = [stream((*EVENTS, mark, MORE), break_after=5)]
        async with Harness([upstream], sqlite_url) as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert first.body == second.body == b"".join(EVENTS) + given
        assert upstream.num_executed == 1

    runner.run(scenario())


@pytest.mark.parametrize("mark", [b"data: [DONE]", b"data: [DONE", b"data: [DONE] or not\n"])
def test_stream_that_breaks_in_its_end_mark_is_broken(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, mark: bytes
) -> None:
    async def scenario() -> None:
        upstream.script = [stream((*EVENTS, mark, MORE), break_after=5)]
        async with Harness([upstream], sqlite_url) as gateway:
            answered = await gateway.post()
        assert b'"failed_retryable"' in answered.body
        assert b"[DONE" not in answered.body

    runner.run(scenario())


@pytest.mark.parametrize("key", ["k", None])
def test_body_that_never_ends_behind_the_end_mark_is_closed(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, key: str | None
) -> None:
    closed = asyncio.Event()

    async def endless(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        try:
            return await stream((*EVENTS, DONE, MORE), hold_before=5)(upstream, request, body)
        except asyncio.CancelledError:
            closed.set()
            raise

    async def scenario() -> None:
        upstream.script = [endless]
        upstream.default = stream()
        async with Harness([upstream], sqlite_url) as gateway, asyncio.timeout(20):
            assert (await gateway.post(key)).body == STREAM
            assert (await gateway.post("other")).body == STREAM
            await closed.wait()

    runner.run(scenario())


def test_connection_whose_body_ends_soon_after_the_end_mark_is_used_again(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_connection, "LEAVE_SECONDS", 30.0)
    peers: list[object] = []

    async def slow_to_end(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM)
        await asyncio.sleep(0.005)
        await response.write_eof()
        return response

    async def scenario() -> None:
        upstream.default = slow_to_end
        async with Harness([upstream], sqlite_url, health_interval_ms=60_000) as gateway:
            for _ in range(3):
                assert (await gateway.post(None)).body == STREAM
                async with asyncio.timeout(20):
                    while not any(gateway.parts.client._pool._free.values()):
                        await asyncio.sleep(0.005)
        assert len(set(peers)) == 1

    runner.run(scenario())


@pytest.mark.parametrize("half", [b'data: {"par', b'data: {"part": 1}\n', b"data: 1\r\n"])
@pytest.mark.parametrize("on_unknown", ["retry", "fail"])
def test_error_event_is_an_event_of_its_own(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    on_unknown: str,
    half: bytes,
) -> None:
    async def scenario() -> None:
        upstream.script = [stream((*EVENTS, half, MORE), break_after=5)]
        async with (
            Harness([upstream], sqlite_url, on_unknown=on_unknown) as gateway,
            Harness([upstream], sqlite_url, on_unknown=on_unknown) as other,
        ):
            first = await gateway.post()
            if on_unknown == "fail":
                assert (await gateway.post()).body == first.body
                assert (await other.post()).body == first.body
                assert upstream.num_executed == 1
        last, nothing = first.body.replace(b"\r\n", b"\n").split(b"\n\n")[-2:]
        assert nothing == b"" and "error" in json.loads(last.removeprefix(b"data: "))
        assert first.body.startswith(b"".join(EVENTS) + half)

    runner.run(scenario())


def test_followers_get_the_same_end_of_a_stream_that_broke_in_an_event(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream((*EVENTS, b'data: {"par', MORE), hold_before=5, break_after=5)
        async with (
            Harness([upstream], store_url, on_unknown="fail") as gateway,
            Harness([upstream], store_url, on_unknown="fail") as other,
        ):
            first = asyncio.create_task(gateway.post())
            await upstream.arrived.wait()
            joined = [asyncio.create_task(one.post()) for one in (gateway, other)]
            await asyncio.sleep(0.3)
            upstream.release.set()
            answers = [one.body for one in await asyncio.gather(first, *joined)]
        assert answers[0] == answers[1] == answers[2]
        assert b'data: {"par\n\ndata: {"error":' in answers[0]
        assert upstream.num_executed == 1

    runner.run(scenario())


@pytest.mark.parametrize(
    ("before", "end"),
    [(b"data: 1\n", b"\n"), (b"data: 1\nid: 7\r\n", b"\r\n"), (b"event: error\n", b"")],
)
def test_upstreams_error_is_parted_from_data_but_not_from_its_name(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, before: bytes, end: bytes
) -> None:
    async def scenario() -> None:
        upstream.script = [stream((*EVENTS, before, ERROR_EVENT))]
        async with Harness([upstream], sqlite_url) as gateway:
            answered = await gateway.post()
        told = b"".join(EVENTS) + before + end + ERROR_EVENT + b"data: "
        assert answered.body.startswith(told)

    runner.run(scenario())


def test_error_event_of_a_stream_that_is_lost_is_an_event_of_its_own(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    half = b'data: {"par'

    async def scenario() -> None:
        upstream.default = stream((*EVENTS, half, DONE), hold_before=5)
        async with Harness([upstream], sqlite_url) as gateway:
            post = asyncio.create_task(gateway.post())
            async with asyncio.timeout(20):
                while not any(
                    execution.tail.endswith(half[-4:])
                    for execution in gateway.gateway._executions.values()
                ):
                    await asyncio.sleep(0.005)
            await gateway.gateway.stop()
            answered = await post
        *_, before, last, _ = answered.body.split(b"\n\n")
        assert before == half
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stream_lost"

    runner.run(scenario())


def test_error_told_by_a_stream_begun_anew_follows_no_half_event(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    half = b'data: {"par'

    async def scenario() -> None:
        upstream.script = [stream((*EVENTS, half, MORE), break_after=5)]
        upstream.default = stream((*EVENTS[:2], ERROR_EVENT))
        retry = {"max_tries": 2}
        async with Harness([upstream], sqlite_url, deduplicates=True, retry=retry) as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert first.body.startswith(b"".join(EVENTS) + half + b"\n\n" + ERROR_EVENT + b"data: ")
        assert second.body == first.body

    runner.run(scenario())
