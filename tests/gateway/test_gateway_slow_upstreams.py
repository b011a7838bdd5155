"""Answers that stand still, drip, or are too long to keep."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from harness import Harness, code_of
from scripted_upstream import (
    BEGUN,
    Reply,
    ScriptedUpstream,
    answer,
    hold,
    stream,
)

from takt.gateway import attempt as attempts
from takt.gateway.states import State


def test_answer_too_long_to_keep_is_an_error(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, max_response_bytes=30) as gateway:
            upstream.default = answer(text='"' + "x" * 40 + '"')
            whole = await gateway.post("whole")
            upstream.default = stream()
            streamed = await gateway.post("stream")
        assert (whole.status, code_of(whole)) == (502, "response_too_large")
        assert b"response_too_large" in streamed.body

    runner.run(scenario())


def test_answer_that_stands_still_is_given_up(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.default = stream(hold_before=2)
        async with Harness([upstream], sqlite_url, retry={"idle_timeout_ms": 500}) as gateway:
            streamed = await gateway.post("stream")
            upstream.default = hold(answer())
            retry = {"response_timeout_ms": 80, "max_tries": 2}
            async with Harness([upstream], sqlite_url, retry=retry) as hasty:
                silent = await hasty.post("silent")
                letters = await hasty.parts.store.dead_letters(5)
        assert streamed.body.startswith(BEGUN)
        assert b"error" in streamed.body
        assert (silent.status, code_of(silent)) == (504, "dead_letter")
        assert letters[0].state is State.DEAD

    runner.run(scenario())


def drip(status: int) -> Reply:
    """An answer whose body never ends."""

    async def reply(
        upstream: ScriptedUpstream, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"busy ")
            await asyncio.sleep(0.01)

    return reply


def test_refusal_that_drips_is_tried_again(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "MAX_REFUSAL_SECONDS", 0.3)

    async def scenario() -> None:
        upstream.script = [drip(503)]
        upstream.default = answer()
        retry = {"max_tries": 2}
        async with Harness([upstream], sqlite_url, retry=retry) as gateway, asyncio.timeout(20):
            assert (await gateway.post()).status == 200
            upstream.default = drip(429)
            told = await gateway.post("told")
        assert told.status == 429 and told.body.startswith(b"busy ")

    runner.run(scenario())


def test_refusal_that_drips_is_read_no_longer_than_the_deadline(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "MAX_REFUSAL_SECONDS", 60.0)

    async def scenario() -> None:
        upstream.default = drip(503)
        headers = {"X-Request-Timeout-Ms": "1000"}
        async with Harness([upstream], sqlite_url) as gateway, asyncio.timeout(20):
            assert (await gateway.post(headers=headers)).body.startswith(b"busy ")
        assert len(upstream.seen) == 1

    runner.run(scenario())
