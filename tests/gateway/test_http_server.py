"""The gateway's own HTTP towards clients: what they may do works."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from pathlib import Path

import pytest
import uvloop
from raw_http import END, EchoApplication, Served, bodies, echo, post

from certificate import self_signed, server_context
from takt.gateway.errors import GatewayError
from takt.gateway.http.connection import ClientConnection
from takt.gateway.http.exchange import Exchange
from takt.gateway.http.request_reader import RequestReader


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


def test_thousands_that_are_answered_at_once_leave_others_their_turn(
    runner: asyncio.Runner,
) -> None:
    num_requests = 3000
    seen_by_others: list[int] = []

    async def at_once(exchange: Exchange) -> None:
        if not seen_by_others:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: seen_by_others.append(len(application.seen)))
        await echo(exchange)

    application = EchoApplication(answer=at_once)

    async def scenario() -> None:
        async with Served(application) as served:
            answered = await served.ask(post(b"") * num_requests + post(b"", b"Connection: close"))
        assert answered.count(b"HTTP/1.1 200") == num_requests + 1
        assert seen_by_others[0] < 10

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


def test_thousands_of_offers_in_one_packet_are_no_recursion(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        refusal = GatewayError(429, "busy", "Busy.")
        async with Served(EchoApplication(refusal=refusal)) as served:
            offer = post(b"body", b"Upgrade: h2c", b"Connection: Upgrade")
            answered = await served.ask(offer * 1500 + post(b"", b"Connection: close"))
        assert answered.count(b"HTTP/1.1 429") == 1501

    runner.run(scenario())


def test_a_body_of_tiny_chunks_takes_the_memory_of_its_bytes(runner: asyncio.Runner) -> None:
    num_bytes = 100_000

    async def scenario() -> None:
        async with Served(EchoApplication()) as served:
            connection = ClientConnection(served.server, asyncio.get_running_loop())
            reader = RequestReader(connection, num_bytes)
            reader.feed(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
            tracemalloc.start()
            try:
                for _ in range(num_bytes // 2000):
                    reader.feed(b"2\r\nab\r\n" * 1000)
                kept_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            reader.feed(b"0\r\n\r\n")
            (exchange,) = reader.exchanges
            exchange.join_body()
        assert exchange.body == b"ab" * (num_bytes // 2)
        assert kept_bytes < 3 * num_bytes

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
            while application.num_in_flight != 1:
                await asyncio.sleep(0.01)
            writer.close()
            while application.num_in_flight != 0:
                await asyncio.sleep(0.01)

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


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_on_the_loop_that_serves_with_and_without_tls(tmp_path: Path, is_encrypted: bool) -> None:
    """uvloop's transports, and its TLS, have their own ideas of closing and of full buffers."""
    num_bytes = 20_000_000

    async def flood(exchange: Exchange) -> None:
        if exchange.path != "/flood":
            await echo(exchange)
            return
        exchange.begin(200, [])
        drained = asyncio.Event()
        exchange.on_drained = drained.set
        for _ in range(num_bytes // 100_000):
            exchange.write(b"x" * 100_000)
            if exchange.is_held_up:
                drained.clear()
                await drained.wait()
        exchange.end()

    async def scenario() -> None:
        tls = None
        if is_encrypted:
            file, key_file = self_signed(tmp_path)
            tls = server_context(file, key_file), ssl.create_default_context(cafile=file)
        application = EchoApplication(max_body_bytes=1_000_000, answer=flood)
        async with Served(application, tls) as served:
            answered = await served.ask(post(b"one") + post(b"two", b"Connection: close"))
            assert bodies(answered) == [b"one", b"two"]
            flooded = await served.ask(post(b"", b"Connection: close", path=b"/flood"))
            assert flooded.count(b"x") == num_bytes and flooded.endswith(b"\r\n0\r\n\r\n")
            assert (await served.ask(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
            refused = await served.ask(
                post(b"x" * 900_000)[:-900_000].replace(b"900000", b"9000000")
            )
            assert refused.startswith(b"HTTP/1.1 413")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
