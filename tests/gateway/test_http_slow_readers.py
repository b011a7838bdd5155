"""Clients that take their time over an answer get all of it; those that read nothing are let go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop
from raw_http import EchoApplication, Served, post

from certificate import self_signed, server_context
from takt.gateway.gateway import Gateway
from takt.gateway.handler import Handler
from takt.gateway.http import connection, server
from takt.gateway.http.connection import ClientConnection
from takt.gateway.http.exchange import Exchange
from takt.gateway.http.limits import READ_SECONDS
from takt.gateway.options import GatewayOptions
from takt.gateway.serve import _Service

NUM_BYTES = 30_000_000
"""More than the buffers of two kernels take."""

MakeLoop = Callable[[], asyncio.AbstractEventLoop]


async def flood(exchange: Exchange) -> None:
    exchange.send(200, [], bytes(NUM_BYTES))


async def ask(
    served: Served, *fields: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, ClientConnection]:
    """The client, and its connection once the server has answered and all buffers are full."""
    reader, writer = await served.connect()
    writer.write(post(b"", *fields))
    await reader.readuntil(b"\r\n\r\n")
    (found,) = served.server.connections
    while not (found.is_idle and found.is_writing_paused):
        await asyncio.sleep(0.01)
    return reader, writer, found


@pytest.fixture
def checks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times pass as the test says, and no pause of the machine is one."""
    monkeypatch.setattr(server, "CHECK_SECONDS", 1000.0)


@pytest.mark.usefixtures("checks_by_hand")
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_last_answer_is_waited_for(
    make_loop: MakeLoop, is_encrypted: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        tls = None
        if is_encrypted:
            file, key_file = self_signed(tmp_path)
            tls = server_context(file, key_file), ssl.create_default_context(cafile=file)
        async with Served(EchoApplication(answer=flood), tls) as served:
            reader, writer, slow = await ask(served, b"Connection: close")
            slow.check(asyncio.get_running_loop().time() + 10 * connection.LINGER_SECONDS)
            assert len(await reader.read()) == NUM_BYTES
            if not is_encrypted:
                # It says that it has ended, and waits a moment for the client to do so.
                slow.check(asyncio.get_running_loop().time() + 2 * connection.LINGER_SECONDS)
            while served.server.connections:
                await asyncio.sleep(0.01)
            writer.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scenario())


@pytest.mark.usefixtures("checks_by_hand")
@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_reads_slowly_is_there_and_who_reads_nothing_is_not(make_loop: MakeLoop) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication(answer=flood)) as served:
            reader, writer, slow = await ask(served)
            now = asyncio.get_running_loop().time()
            slow.check(now)
            for _ in range(20):
                now += 0.6 * READ_SECONDS
                await reader.readexactly(500_000)
                await asyncio.sleep(0.02)
                slow.check(now)
                assert slow.is_writing_paused and not slow.is_closing
            slow.check(now + 1.1 * READ_SECONDS)
            assert slow.is_closing
            writer.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scenario())


@pytest.mark.usefixtures("checks_by_hand")
def test_a_byte_now_and_then_is_not_reading(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication(answer=flood)) as served:
            # A kernel's buffer takes much by itself: what is read here is the last of it.
            reader, writer, slow = await ask(served)
            now = asyncio.get_running_loop().time()
            slow.check(now)
            num_checks = 0
            while not slow.is_closing:
                now += 0.3 * READ_SECONDS
                await reader.readexactly(100)
                await asyncio.sleep(0.01)
                slow.check(now)
                num_checks += 1
                assert num_checks < 100
            writer.close()

    runner.run(scenario())


@pytest.mark.usefixtures("checks_by_hand")
def test_a_stream_that_was_read_may_pause(runner: asyncio.Runner) -> None:
    goes_on = asyncio.Event()

    async def begin_and_wait(exchange: Exchange) -> None:
        exchange.begin(200, [])
        exchange.write(b"one")
        await goes_on.wait()
        exchange.end()

    async def scenario() -> None:
        async with Served(EchoApplication(answer=begin_and_wait)) as served:
            reader, writer = await served.connect()
            writer.write(post(b""))
            await reader.readuntil(b"one\r\n")
            (found,) = served.server.connections
            now = asyncio.get_running_loop().time()
            for number in range(5):
                found.check(now + number * READ_SECONDS)
            assert not found.is_closing
            goes_on.set()
            assert await reader.readuntil(b"0\r\n\r\n")
            writer.close()

    runner.run(scenario())


def test_a_gateway_that_stops_waits_for_its_answers_to_be_read(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with Served(EchoApplication(answer=flood)) as served:
            reader, writer, _ = await ask(served)
            service = _Service(GatewayOptions(upstream=("http://u",), drain_timeout_seconds=100))
            drain = asyncio.create_task(
                service._drain(
                    cast(Gateway, SimpleNamespace(num_running=0)),
                    cast(Handler, SimpleNamespace(num_in_flight=0)),
                    served.server,
                )
            )
            await asyncio.sleep(0.1)
            assert not drain.done()
            assert len(await reader.readexactly(NUM_BYTES)) == NUM_BYTES
            await drain
            writer.close()

    runner.run(scenario())
