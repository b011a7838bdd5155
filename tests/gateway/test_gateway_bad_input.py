"""What is sent by mistake or with intent: refused in order, or passed on whole."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web
from harness import BODY, PATH, Harness
from scripted_upstream import ScriptedUpstream, answer

from certificate import self_signed, server_context
from takt.gateway.headers import head_of, without_secrets
from takt.gateway.http import connection
from takt.gateway.http.fields import Headers


async def send_raw(url: str, data: bytes) -> bytes:
    """The answer's head and what comes with it."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answered = await asyncio.wait_for(reader.read(4096), 100)
    writer.close()
    await writer.wait_closed()
    return answered


def request_bytes(target: bytes = PATH.encode(), *headers: bytes) -> bytes:
    lines = [b"POST %s HTTP/1.1" % target, b"Host: h", b"Content-Length: 2", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n{}"


@pytest.mark.parametrize(
    "data",
    [
        request_bytes(b"http://elsewhere/v1/completions"),
        request_bytes(b"elsewhere://x/"),
        request_bytes(b"*"),
        request_bytes(b"/v1/\xff"),
        request_bytes(PATH.encode(), b"X-Broken: \xff\xfe"),
        request_bytes(PATH.encode(), b"Idempotency-Key: \xff"),
        request_bytes(PATH.encode(), b"X-Request-Timeout-Ms: \xb2"),
    ],
    ids=["absolute", "scheme", "star", "path", "header", "key", "deadline"],
)
def test_request_that_is_no_text_or_names_no_path_is_400(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    data: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            answered = await send_raw(gateway.url, data)
        assert answered.split()[1] == b"400"
        assert not upstream.seen

    runner.run(scenario())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_credential_that_is_no_text_is_refused_and_not_an_error_of_ours(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, admin_key="secret") as gateway:
            data = request_bytes(PATH.encode(), b"Authorization: Bearer \xff")
            assert (await send_raw(gateway.url, data)).startswith(b"HTTP/1.1 400")
            data = request_bytes(b"/gateway/drain", b"Authorization: Bearer \xff")
            assert (await send_raw(gateway.url, data)).startswith(b"HTTP/1.1 401")

    runner.run(scenario())


def test_text_beyond_ascii_passes(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            data = request_bytes(PATH.encode(), "X-Name: Ærø".encode())
            assert (await send_raw(gateway.url, data)).startswith(b"HTTP/1.1 200")
        assert upstream.seen[0].headers["X-Name"] == "Ærø"

    runner.run(scenario())


def test_answer_with_a_header_that_is_no_text_is_recorded_and_given_again(
    runner: asyncio.Runner, sqlite_url: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"content-length: " in head:
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nX-Odd: a\xff\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        odd = ScriptedUpstream()
        odd.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Harness([odd], sqlite_url) as gateway:
            first, second = await gateway.post(), await gateway.post()
        server.close()
        assert (first.status, second.status, second.is_replay) == (200, 200, True)
        assert first.headers["X-Odd"] == second.headers["X-Odd"] == "a?"

    runner.run(scenario())


def test_compressed_request_is_the_same_request_and_arrives_readable(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        plain = json.dumps(BODY).encode()
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with Harness([upstream], sqlite_url, max_request_bytes=1000) as gateway:
            first = await gateway.post(data=gzip.compress(plain), headers=headers)
            again = await gateway.post(data=plain)
            bomb = await gateway.post("bomb", data=gzip.compress(bytes(100_000)), headers=headers)
        assert (first.status, again.is_replay, bomb.status) == (200, True, 413)
        (seen,) = upstream.seen
        assert seen.body == plain
        assert "Content-Encoding" not in seen.headers

    runner.run(scenario())


def test_fields_that_come_twice_count_twice(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    """The second Connection too says what goes no further; a second encoding is not left undone."""

    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            fields = (b"Connection: X-A", b"X-A: a", b"Connection: X-B", b"X-B: b", b"X-C: c")
            data = request_bytes(PATH.encode(), *fields)
            assert (await send_raw(gateway.url, data)).startswith(b"HTTP/1.1 200")
            data = request_bytes(PATH.encode(), b"Content-Encoding: br", b"Content-Encoding: gzip")
            assert (await send_raw(gateway.url, data)).startswith(b"HTTP/1.1 400")
        (seen,) = upstream.seen
        assert "X-C" in seen.headers
        assert not {"X-A", "X-B"} & set(seen.headers)

    runner.run(scenario())


def test_answer_encoded_twice_keeps_both_names() -> None:
    twice = Headers([("Content-Encoding", "br"), ("Content-Encoding", "gzip")])
    assert head_of(200, twice).headers == twice.pairs
    once = Headers([("Content-Encoding", "gzip"), ("Connection", "x-a"), ("Connection", "x-b")])
    assert head_of(200, Headers([*once.pairs, ("X-A", "a"), ("X-B", "b")])).headers == []


def test_client_that_stops_in_its_body_does_not_keep_its_place(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "BODY_IDLE_SECONDS", 0.1)

    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, max_in_flight=1) as gateway:
            stopped = request_bytes().replace(b"Content-Length: 2", b"Content-Length: 99")
            assert (await send_raw(gateway.url, stopped)).startswith(b"HTTP/1.1 408")
            assert (await gateway.post()).status == 200

    runner.run(scenario())


@pytest.mark.parametrize("name", ["X-Api-Key", "Api-Key"])
def test_each_credential_that_an_upstream_may_look_at_makes_another_tenant(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, name: str
) -> None:
    async def scenario() -> None:
        placeholder = {"Authorization": "Bearer none"}
        async with Harness([upstream], sqlite_url) as gateway:
            mine = await gateway.post(headers={name: "mine"} | placeholder)
            theirs = await gateway.post(headers={name: "theirs"} | placeholder)
            again = await gateway.post(headers={name: "mine"} | placeholder)
        assert mine.body == again.body != theirs.body
        assert upstream.num_executed == 2

    runner.run(scenario())


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"authorization", b"Api-Key"])
def test_a_second_header_that_says_whose_or_which_request_it_is_is_refused(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, name: bytes
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            twice = b"%b: one\r\n%b: two\r\nContent-Length: 2" % (name, name)
            answered = await send_raw(
                gateway.url, request_bytes().replace(b"Content-Length: 2", twice)
            )
            assert answered.startswith(b"HTTP/1.1 400")
            assert b"no more than one" in answered
        assert upstream.num_executed == 0

    runner.run(scenario())


def test_dead_letter_keeps_no_header_that_may_hold_a_secret() -> None:
    given = [
        ("Authorization", "s"),
        ("Ocp-Apim-Subscription-Key", "s"),
        ("X-Auth-Token", "s"),
        ("X-Amz-Security-Token", "s"),
        ("Cookie", "s"),
        ("Content-Type", "application/json"),
        ("OpenAI-Organization", "o"),
    ]
    assert without_secrets(given) == given[-2:]


def test_upstream_with_a_certificate_that_nobody_vouches_for_gets_nothing(
    runner: asyncio.Runner, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, key_file = self_signed(tmp_path)
    tls = server_context(file, key_file)
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        secure = ScriptedUpstream(default=answer())
        await secure.start(tls=tls)
        retry = {"patience_ms": 1}
        async with Harness([secure], sqlite_url, retry=retry) as gateway:
            refused = await gateway.post(headers={"Authorization": "Bearer secret-1"})
            health = await gateway.post(None, path="/health", method="GET", data=b"")
        assert (refused.status, health.status) == (503, 503)
        assert not secure.seen
        policy = {"upstreams": [{"url": secure.url, "ca_file": str(file)}]}
        async with Harness([secure], sqlite_url, policy=policy) as gateway:
            assert (await gateway.post()).status == 200
        await secure.stop()

    runner.run(scenario())
    assert "certificate" in caplog.text
    assert "secret-1" not in caplog.text


def test_answer_of_an_odd_shape_is_passed_on_as_it_is(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    """No body, a status of its own, a type that is none."""

    async def reply(_: ScriptedUpstream, request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=299, headers={"Content-Type": "nonsense"})

    async def scenario() -> None:
        upstream.default = reply
        async with Harness([upstream], sqlite_url) as gateway:
            first, second = await gateway.post(), await gateway.post()
        assert (first.status, first.body, first.headers["Content-Type"]) == (299, b"", "nonsense")
        assert (second.status, second.is_replay) == (299, True)

    runner.run(scenario())
