"""Streams that break: ended with an error, tried again, or resumed where that is exact."""

from __future__ import annotations

import asyncio
import json

import pytest
from harness import Harness
from scripted_upstream import (
    BEGUN,
    DONE,
    ERROR_EVENT,
    EVENTS,
    STREAM,
    ScriptedUpstream,
    stream,
)


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
