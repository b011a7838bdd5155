"""The connections to upstreams: where an answer ends, what breaks it, and which are used again."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from typing import Any

import pytest
from raw_http import RawUpstream, Script, ScriptedConnections

from takt.gateway.http import pool as pools
from takt.gateway.http.decoding import (
    MAX_MEMBERS,
    MAX_SLICE_BYTES,
    BadEncodingError,
    Decoder,
)
from takt.gateway.http.pool import ConnectionPool, Origin
from takt.gateway.http.response import BrokenExchangeError, EnoughError, Response
from takt.gateway.http.upstream_connection import UpstreamConnection

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Client:
    def __init__(self, url: str, *, idle_seconds: float = 5.0) -> None:
        self._pool = ConnectionPool()
        self._origin = Origin.of(url, None)
        self._idle_seconds = idle_seconds

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def head(self, *, is_head: bool = False) -> Response:
        connection = self._pool.take(self._origin) or await self._pool.connect(self._origin, 5)
        return await connection.send(
            GET, is_head=is_head, response_seconds=5, idle_seconds=self._idle_seconds
        )

    async def get(self, *, is_head: bool = False) -> bytes:
        response = await self.head(is_head=is_head)
        whole = response.whole()
        if whole is not None:
            return whole
        pieces: list[bytes] = []
        await response.read(pieces.append)
        return b"".join(pieces)


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"ok"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"a", b"bc"), b"abc"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Late: 1\r\n\r\n", b"abc"),
        (HEAD + b"Connection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 103 Early Hints\r\nX-A: b\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 \r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("is_slow", [False, True])
def test_bodies_end_where_http_says(
    runner: asyncio.Runner, answer: bytes, body: bytes, is_slow: bool
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        pieces = [answer[i : i + 7] for i in range(0, len(answer), 7)] if is_slow else [answer]
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.001)

    async def scenario() -> None:
        async with RawUpstream(serve) as upstream, Client(upstream.url) as client:
            assert await client.get() == body

    runner.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc",
        HEAD + b"X-Long: " + b"x" * 200_000,
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nnot http",
        b"nonsense\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_whole_is_broken(runner: asyncio.Runner, answer: bytes) -> None:
    async def scenario() -> None:
        async with (
            RawUpstream(ScriptedConnections(Script([answer]))) as upstream,
            Client(upstream.url) as client,
        ):
            with pytest.raises(BrokenExchangeError) as broken:
                await client.get()
            assert not broken.value.is_late

    runner.run(scenario())


def test_what_stands_still_is_late(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        begun = HEAD + b"Content-Length: 9\r\n\r\nabc"
        connections = ScriptedConnections(Script([begun], stays_open=True))
        async with (
            RawUpstream(connections) as upstream,
            Client(upstream.url, idle_seconds=0.05) as client,
        ):
            with pytest.raises(BrokenExchangeError) as broken:
                await client.get()
            assert broken.value.is_late

    runner.run(scenario())


def test_a_reader_that_has_enough_gets_no_more_and_no_error(runner: asyncio.Runner) -> None:
    begun = HEAD + b"Content-Length: 9\r\n\r\nabc"
    got: list[bytes] = []

    def take(piece: bytes) -> None:
        got.append(piece)
        raise EnoughError

    async def scenario() -> None:
        connections = ScriptedConnections(Script([begun]))
        async with RawUpstream(connections) as upstream, Client(upstream.url) as client:
            response = await client.head()
            await response.read(take)
            response.take(b"def")
            await response.read(take)
        assert got == [b"abc"] and not response.is_whole

    runner.run(scenario())


def test_a_connection_is_used_again_after_a_whole_answer_only(runner: asyncio.Runner) -> None:
    closes = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

    async def scenario() -> None:
        connections = ScriptedConnections(
            Script([OK, OK, closes]),
            # A second answer that nobody asked for must not be the next request's.
            Script([OK + OK], stays_open=True),
            Script([OK.replace(b"ok", b"")], stays_open=True),  # for HEAD
            Script([OK]),
        )
        async with RawUpstream(connections) as upstream, Client(upstream.url) as client:
            for _ in range(4):
                assert await client.get() == b"ok"
            assert await client.get(is_head=True) == b""
            assert await client.get() == b"ok"
            assert [len(requests) for requests in connections.seen] == [3, 1, 1, 1]

    runner.run(scenario())


def test_whoever_is_cancelled_closes_the_connection_only_while_it_is_theirs(
    runner: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Response]] = []

        def ask(connection: UpstreamConnection) -> None:
            call = connection.send(GET, is_head=False, response_seconds=5, idle_seconds=5)
            tasks.append(asyncio.create_task(call))

        def take_over(connection: UpstreamConnection) -> None:
            if len(tasks) == 1:
                tasks[0].cancel()
                ask(connection)

        connections = ScriptedConnections(Script([OK, OK], stays_open=True))
        async with RawUpstream(connections) as upstream:
            origin = Origin.of(upstream.url, None)
            _, connection = await loop.create_connection(
                lambda: UpstreamConnection(loop, take_over), origin.host, origin.port
            )
            ask(connection)
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            response = await tasks[1]
            assert response.whole() == b"ok"
            ask(connection)
            await asyncio.sleep(0)
            tasks[2].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[2]
            assert not connection.is_open, "its answer was still to come"

    runner.run(scenario())


def test_bytes_that_come_unasked_close_a_free_connection(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        sent = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await asyncio.sleep(0.02)
            writer.write(OK.replace(b"ok", b"no"))
            sent.set()
            await reader.read()

        async with RawUpstream(serve) as upstream, Client(upstream.url) as client:
            assert await client.get() == b"ok"
            await sent.wait()
            await asyncio.sleep(0.02)
            assert await client.get() == b"ok"

    runner.run(scenario())


def test_an_old_connection_is_not_trusted(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        connections = ScriptedConnections(*[Script([OK, OK, OK], stays_open=True)] * 2)
        async with RawUpstream(connections) as upstream, Client(upstream.url) as client:
            await client.get()
            await client.get()
            monkeypatch.setattr(pools, "KEEP_ALIVE_SECONDS", 0.0)
            await client.get()
            assert [len(requests) for requests in connections.seen] == [2, 1]

    runner.run(scenario())


def test_a_reader_that_has_enough_closes_the_connection(runner: asyncio.Runner) -> None:
    class EnoughError(Exception):
        pass

    def refuse(_: bytes) -> None:
        raise EnoughError

    async def scenario() -> None:
        begun = HEAD + b"Content-Length: 9\r\n\r\nabc"
        connections = ScriptedConnections(Script([begun], stays_open=True), Script([OK]))
        async with RawUpstream(connections) as upstream, Client(upstream.url) as client:
            response = await client.head()
            with pytest.raises(EnoughError):
                await response.read(refuse)
            assert await client.get() == b"ok", "on another connection"

    runner.run(scenario())


def deflated(data: bytes, window_bits: int) -> bytes:
    deflate = zlib.compressobj(wbits=window_bits)
    return deflate.compress(data) + deflate.flush()


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(b"some text")),
        ("gzip", gzip.compress(b"some ") + gzip.compress(b"text")),
        ("deflate", deflated(b"some text", 15)),
        ("deflate", deflated(b"some text", -15)),
    ],
    # Not the data: gzip's has the time in it, and each process that runs tests collects them.
    ids=["gzip", "gzip, two members", "deflate", "deflate, bare"],
)
def test_compressed_answers_become_readable_or_are_broken(
    runner: asyncio.Runner, encoding: str, data: bytes
) -> None:
    head = HEAD + b"Content-Encoding: %b\r\nContent-Length: " % encoding.encode()

    async def scenario() -> None:
        whole = head + b"%d\r\n\r\n" % len(data) + data
        part = head + b"%d\r\n\r\n" % (len(data) - 3) + data[:-3]
        connections = ScriptedConnections(Script([whole, part]))
        async with RawUpstream(connections) as upstream, Client(upstream.url) as client:
            assert await client.get() == b"some text"
            with pytest.raises(BadEncodingError):
                await client.get()

    runner.run(scenario())


@pytest.mark.parametrize("num_members", [2, 3000])
def test_a_gzip_body_of_many_members_is_read_once(
    num_members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_bytes = 0
    make = zlib.decompressobj

    class Counted:
        def __init__(self, window_bits: int) -> None:
            self._inflate = make(window_bits)

        def decompress(self, data: bytes, limit: int) -> bytes:
            nonlocal given_bytes
            given_bytes += len(data)
            return self._inflate.decompress(data, limit)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inflate, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    text = random.Random(0).randbytes(1_000_000)
    data = gzip.compress(b"") * (num_members - 1) + gzip.compress(text)
    decoder = Decoder("gzip")
    if num_members <= MAX_MEMBERS:
        assert b"".join(decoder.feed(data)) == text
        decoder.end()
    else:
        with pytest.raises(BadEncodingError, match="members"):
            list(decoder.feed(data))
    assert given_bytes < len(data) + MAX_MEMBERS * MAX_SLICE_BYTES


def test_a_bomb_is_decoded_as_far_as_it_is_read() -> None:
    bomb = gzip.compress(bytes(30_000_000))
    pieces = Decoder("gzip").feed(bomb)
    assert len(next(pieces)) + len(next(pieces)) < 3_000_000


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://h", "h", ""),
        ("http://h:80/v1", "h", "/v1"),
        ("https://h:8443", "h:8443", ""),
        ("http://[::1]:8000", "[::1]:8000", ""),
        ("http://bücher.example/ä?k=v w", "xn--bcher-kva.example", "/%C3%A4?k=v%20w"),
    ],
)
def test_where_a_url_leads(url: str, authority: str, path: str) -> None:
    origin = Origin.of(url, None)
    assert (origin.authority, origin.path) == (authority, path)
