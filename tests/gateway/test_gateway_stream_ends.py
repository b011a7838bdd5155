"""Streams that break, stay open or end at their end mark, or in an event."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from harness import Harness
from scripted_upstream import (
    DONE,
    ERROR_EVENT,
    EVENTS,
    MORE,
    STREAM,
    ScriptedUpstream,
    stream,
)

from takt.gateway.http import upstream_connection


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
