"""The gateway's own HTTP: what honest clients may do works, and what others try is refused."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from raw_http import EchoApplication, Served, echo

from takt.gateway.errors import GatewayError
from takt.gateway.http import connection, server
from takt.gateway.http.exchange import Exchange

END = b"Connection: close\r\n\r\n"


def post(body: bytes, *fields: bytes, path: bytes = b"/") -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: h", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def bodies(answered: bytes) -> list[bytes]:
    """Of answers with a length, one behind the other."""
    found = []
    while answered:
        head, _, answered = answered.partition(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head).group(1))  # type: ignore[union-attr]
        found.append(answered[:length])
        answered = answered[length:]
    return found


def test_pipelined_requests_are_answered_in_their_order(runner: asyncio.Runner) -> None:
    async def later_is_faster(exchange: Exchange) -> None:
        await asyncio.sleep(0.05 if exchange.body == b"one" else 0)
        await echo(exchange)

    async def scenario() -> None:
        application = EchoApplication(answer=later_is_faster)
        async with Served(application) as served:
            sent = post(b"one") + post(b"two") + post(b"three")
            answered = await served.ask(
                sent[:-3], sent[-3:] + post(b"four"), post(b"five", b"Connection: close")
            )
        assert bodies(answered) == [b"one", b"two", b"three", b"four", b"five"]
        assert application.num_in_flight == 0

    runner.run(scenario())


def test_thousands_of_requests_in_one_packet_are_no_recursion(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        refusal = GatewayError(429, "busy", "Busy.")
        async with Served(EchoApplication(refusal=refusal)) as served:
            sent = post(b"") * 3000 + post(b"", b"Connection: close")
            answered = await served.ask(sent)
        assert answered.count(b"HTTP/1.1 429") == 3001

    runner.run(scenario())


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


def test_an_offer_to_upgrade_is_passed_over(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication()) as served:
            fields = (b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings, close")
            answered = await served.ask(post(b"body", *fields))
            refused = await served.ask(b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert bodies(answered) == [b"body"]
        assert refused.startswith(b"HTTP/1.1 405")

    runner.run(scenario())


def test_a_chunked_body_arrives_and_what_stands_behind_it_is_no_header(
    runner: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        application = EchoApplication()
        async with Served(application) as served:
            answered = await served.ask(
                b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" + END,
                b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nIdempotency-Key: forged\r\n\r\n",
            )
        assert bodies(answered) == [b"abcde"]
        assert "Idempotency-Key" not in application.seen[0].headers

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


def test_a_client_that_leaves_ends_what_was_done_for_it(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def wait(exchange: Exchange) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        application = EchoApplication(answer=wait)
        async with Served(application) as served:
            _, writer = await served.connect()
            writer.write(post(b""))
            await begun.wait()
            writer.close()
            await ended.wait()
            _, writer = await served.connect()
            writer.write(post(b"only a part")[:-3])
            await asyncio.sleep(0.02)
            assert application.num_in_flight == 1
            writer.close()
            await asyncio.sleep(0.02)
        assert application.num_in_flight == 0

    runner.run(scenario())


def test_streams_end_as_each_version_of_http_says(runner: asyncio.Runner) -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.begin(200, [("Content-Type", "text/event-stream")])
        exchange.write(b"one ")
        exchange.write(b"two")
        exchange.end()

    async def scenario() -> None:
        async with Served(EchoApplication(answer=stream)) as served:
            new = await served.ask(b"GET / HTTP/1.1\r\nHost: h\r\n" + END)
            old = await served.ask(b"GET / HTTP/1.0\r\n\r\n")
            head = await served.ask(b"HEAD / HTTP/1.1\r\nHost: h\r\n" + END)
        assert new.endswith(b"\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")
        assert old.endswith(b"\r\n\r\none two")
        assert b"chunked" not in old
        assert head.endswith(b"\r\n\r\n") and head.count(b"\r\n\r\n") == 1

    runner.run(scenario())


def test_head_and_bodiless_answers_have_no_body(runner: asyncio.Runner) -> None:
    async def no_content(exchange: Exchange) -> None:
        exchange.send(204, [], b"dropped")

    async def scenario() -> None:
        async with Served(EchoApplication()) as served:
            data = post(b"abc").replace(b"POST", b"HEAD", 1)
            head = await served.ask(data + data.replace(b"\r\n\r\n", b"\r\n" + END))
        assert head.count(b"Content-Length: 3\r\n") == 2
        assert b"abc" not in head
        async with Served(EchoApplication(answer=no_content)) as served:
            answered = await served.ask(post(b"", b"Connection: close"))
        assert answered.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"dropped" not in answered and b"Content-Length" not in answered

    runner.run(scenario())


def test_an_answer_that_breaks_off_is_not_taken_for_whole(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(exchange: Exchange) -> None:
        exchange.begin(200, [])
        exchange.write(b"half")
        raise RuntimeError("of the test")

    async def scenario() -> None:
        async with Served(EchoApplication(answer=fail)) as served:
            with pytest.raises(ConnectionResetError):
                answered = await served.ask(post(b""))
                assert answered.endswith(b"4\r\nhalf\r\n")
                raise ConnectionResetError

    runner.run(scenario())
    assert "of the test" in caplog.text


def test_a_client_that_reads_nothing_is_held_up_and_let_go(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connection, "WRITE_SECONDS", 0.1)
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
        async with Served(application) as served:
            _, writer = await served.connect()
            writer.write(post(b""))
            async with asyncio.timeout(10):
                while not application.seen or application.num_in_flight:
                    await asyncio.sleep(0.01)
            writer.close()
        assert 0 < num_written < 1000

    runner.run(scenario())


def test_a_field_that_would_end_its_line_is_never_written(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    async def split(exchange: Exchange) -> None:
        exchange.send(200, [("X-A", "a\r\nX-Injected: b")], b"")

    async def scenario() -> None:
        async with Served(EchoApplication(answer=split)) as served:
            try:
                answered = await served.ask(post(b""))
            except ConnectionResetError:
                answered = b""
        assert answered == b""

    runner.run(scenario())
    assert "line end" in caplog.text
