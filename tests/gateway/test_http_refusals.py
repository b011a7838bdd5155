"""What is no request, or comes too slowly, or is too long: refused, in order, and told so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re

import pytest
from raw_http import END, EchoApplication, Served, bodies, post

from takt.gateway.errors import GatewayError
from takt.gateway.http import connection, server
from takt.gateway.http.exchange import Exchange


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"
        b"0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5 \nhello\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 1\r\n\r\na",
        b"POST / HTTP/1.1\nHost: h\n\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX-A: a\r\n folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX-A: a\x00b\r\n\r\n",
        b"POST / HTTP/1.1\r\nX-A: no host\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_two_readers_could_take_for_different_requests_is_none(
    runner: asyncio.Runner, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        application = EchoApplication()
        async with Served(application) as served:
            answered = await served.ask(data)
        assert answered.startswith(b"HTTP/1.1 4")
        assert answered.count(b"HTTP/1.1 ") == 1
        assert not application.seen
        assert application.num_in_flight == 0

    runner.run(scenario())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "codings", [[b"gzip, chunked"], [b"gzip", b"chunked"], [b"chunked", b"chunked"]]
)
def test_a_transfer_coding_that_is_not_undone_is_refused(
    runner: asyncio.Runner, codings: list[bytes]
) -> None:
    async def scenario() -> None:
        application = EchoApplication()
        async with Served(application) as served:
            fields = b"".join(b"Transfer-Encoding: %b\r\n" % coding for coding in codings)
            data = b"POST / HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n3\r\nabc\r\n0\r\n\r\n"
            answered = await served.ask(data + post(b"is not answered"))
        assert re.findall(rb"HTTP/1.1 (...)", answered) in ([b"501"], [b"400"])
        assert not application.seen

    runner.run(scenario())


def test_nonsense_behind_a_request_does_not_spoil_its_answer(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication()) as served:
            answered = await served.ask(post(b"fine") + b"nonsense\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200")
        assert bodies(answered)[0] == b"fine"
        assert answered.count(b"HTTP/1.1 400") == 1

    runner.run(scenario())


@pytest.mark.parametrize(
    ("version", "status"), [(b"2.0", 505), (b"0.9", 505), (b"1.2", 400), (b"1.1", 200)]
)
def test_other_versions_are_refused(runner: asyncio.Runner, version: bytes, status: int) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication()) as served:
            answered = await served.ask(b"GET / HTTP/%b\r\nHost: h\r\n" % version + END)
        assert int(answered.split()[1]) == status

    runner.run(scenario())


def test_a_head_without_end_is_refused(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication()) as served:
            whole = await served.ask(post(b"", b"X-Long: " + b"x" * 40_000))
            many = await served.ask(post(b"", *[b"X-%d: x" % i for i in range(5000)]))
            dripped = await served.ask(post(b"", b"X-Long: ")[:-4], *[b"x" * 9_000] * 6)
            target = await served.ask(post(b"", path=b"/" + b"x" * 40_000))
        for answered in (whole, many, dripped, target):
            assert answered.startswith(b"HTTP/1.1 431")

    runner.run(scenario())


def test_slow_clients_are_let_go(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.15)
    monkeypatch.setattr(connection, "BODY_SECONDS", 0.2)

    async def scenario() -> None:
        application = EchoApplication()
        async with Served(application) as served:
            assert await served.ask() == b"", "nothing was asked"
            drip = [b"POST / HTTP/1.1\r\n", *[b"X: y\r\n"] * 40]
            assert (await served.ask(*drip)).startswith(b"HTTP/1.1 408")
            body = [post(b"x" * 99)[:-99], *[b"x"] * 40]
            assert (await served.ask(*body)).startswith(b"HTTP/1.1 408")
            served.server.keep_alive_seconds = 0.05
            answered = await served.ask(post(b"then nothing"))
            assert bodies(answered) == [b"then nothing"]
        assert application.num_in_flight == 0

    runner.run(scenario())


def test_a_refused_request_with_a_short_body_leaves_its_connection_usable(
    runner: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        refusal = GatewayError(429, "busy", "Busy.")
        async with Served(EchoApplication(refusal=refusal)) as served:
            reader, writer = await served.connect()
            for _ in range(3):
                for piece in (post(b"part")[:-2], b"rt"):
                    writer.write(piece)
                    await asyncio.sleep(0.01)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 429")
                length = re.search(rb"Content-Length: (\d+)", head)
                assert length is not None
                await reader.readexactly(int(length.group(1)))
            writer.close()

    runner.run(scenario())


def test_an_answer_to_a_long_body_is_read_though_the_client_still_sends(
    runner: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        application = EchoApplication(max_body_bytes=1000)
        async with Served(application) as served:
            chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            for data in (
                post(b"x" * 4_000_000),
                chunked + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 2000 + b"0\r\n\r\n",
                post(b"", b"Expect: 100-continue").replace(b"Length: 0", b"Length: 4000"),
            ):
                reader, writer = await served.connect()
                writer.write(data)
                assert (await reader.read()).startswith(b"HTTP/1.1 413")
                writer.close()
        assert application.refused_with == ["body_too_large"] * 3
        assert application.num_in_flight == 0

    runner.run(scenario())


def test_a_client_that_reads_nothing_is_held_up_and_let_go(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.02)
    num_written = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal num_written
        exchange.begin(200, [])
        while not exchange.is_held_up:
            exchange.write(b"x" * 100_000)
            num_written += 1
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    async def scenario() -> None:
        application = EchoApplication(answer=flood)
        async with Served(application, read_seconds=0.1) as served:
            _, writer = await served.connect()
            writer.write(post(b""))
            async with asyncio.timeout(100):
                while not application.seen or application.num_in_flight:
                    await asyncio.sleep(0.01)
            writer.close()
        assert 0 < num_written < 1000

    runner.run(scenario())


def test_connections_beyond_the_limit_are_told_so(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_TURNED_AWAY", 1)

    async def scenario() -> None:
        application = EchoApplication()
        async with Served(application, max_connections=2) as served:
            first, second = await served.connect(), await served.connect()
            while len(served.server.connections) < 2:
                await asyncio.sleep(0.01)
            third, fourth = await served.connect(), await served.connect()
            refused = await third[0].read()
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1" in refused and b"--max-connections" in refused
            with contextlib.suppress(ConnectionError):
                assert await fourth[0].read() == b""
            for _, writer in (first, third, fourth):
                writer.close()
            while len(served.server.connections) > 1 or served.server.turned_away:
                await asyncio.sleep(0.01)
            assert bodies(await served.ask(post(b"again", b"Connection: close"))) == [b"again"]
            second[1].close()
        assert application.refused_with == ["too_many_connections"]

    runner.run(scenario())
