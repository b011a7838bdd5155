"""What clients do below HTTP's rules: slow, endless, old, upgrading and pipelining ones."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

import pytest
from server_fakes import FakeEngine, FakeServer, fixed_reply

from takt.server import connection

BODY = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
STREAM = json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}).encode()
ENDLESS = json.dumps({"prompt": "a", "max_tokens": 200, "stream": True}).encode()


def post(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [
        b"POST /v1/completions HTTP/" + version,
        b"Host: x",
        b"Content-Length: %d" % len(body),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def talk(server: FakeServer, *parts: bytes) -> bytes:
    """Everything that the server says until it closes."""
    with server.connect() as raw:
        for part in parts:
            raw.sendall(part)
        return b"".join(iter(lambda: raw.recv(65536), b""))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def error_of(answer: bytes, status: int) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert b"connection: close" in head
    return str(json.loads(body)["error"]["message"])


class Impatience:
    """Short limits, from the moment on that a connection is there."""

    def __init__(self, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._monkeypatch = monkeypatch

    def begin(self, seconds: float) -> None:
        for limit in ("HEAD_SECONDS", "BODY_SECONDS"):
            self._monkeypatch.setattr(connection, limit, seconds)

    def talk(self, part: bytes, seconds: float) -> bytes:
        """The limits hold for a client that sends at once, however long that takes it here."""
        before = set(self._server.connections)
        with self._server.connect() as raw:
            until(lambda: bool(set(self._server.connections) - before))
            self.begin(seconds)
            raw.sendall(part)
            return b"".join(iter(lambda: raw.recv(65536), b""))


@pytest.fixture
def impatience(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Impatience:
    return Impatience(server, monkeypatch)


@pytest.mark.parametrize(
    "part", [b"POST /v1/comp", b"POST / HTTP/1.1\r\nHost: x\r\nA", post(BODY)[:-1]]
)
def test_request_that_never_arrives_gets_408(
    server: FakeServer, impatience: Impatience, part: bytes
) -> None:
    assert "in time" in error_of(impatience.talk(part, 0.05), 408)
    assert server.engine.requests == []


def test_connection_that_says_nothing_is_closed(server: FakeServer, impatience: Impatience) -> None:
    impatience.begin(0.05)
    assert talk(server) == b""


def test_answer_may_take_longer_than_a_request(server: FakeServer, impatience: Impatience) -> None:
    server.engine.pace_seconds = 0.2
    answer = impatience.talk(post(STREAM, b"Connection: close"), 0.3)
    assert answer.count(b"data: ") == 4


def test_line_ends_between_requests_keep_the_idle_limit(server: FakeServer) -> None:
    limit = server._http.config.timeout_keep_alive
    server._http.config.timeout_keep_alive = 1  # type: ignore[assignment]
    try:
        answer = talk(server, b"\r\n", post(BODY), b"\r\n")
    finally:
        server._http.config.timeout_keep_alive = limit
    assert answer.startswith(b"HTTP/1.1 200")


def test_endless_headers_get_431(server: FakeServer) -> None:
    with server.connect() as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nA: ")
        # What the read that begins a request brings is not counted.
        until(lambda: any(each._is_in_head for each in server.connections))
        raw.sendall(b"a" * (connection.MAX_HEAD_BYTES + 1))
        assert "65536" in error_of(b"".join(iter(lambda: raw.recv(65536), b"")), 431)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("chunked", [True, False])
def test_offer_to_upgrade_is_passed_over(
    server: FakeServer, protocol: bytes, chunked: bool
) -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + protocol)
    request = post(BODY, *offer)
    if chunked:
        length = b"Content-Length: %d" % len(BODY)
        request = request.replace(length, b"Transfer-Encoding: chunked")
        request = request.replace(BODY, b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
    last = post(BODY, b"Connection: close")
    # In two reads, and again in one with the next request behind it.
    answer = talk(server, request[:-9], request[-9:], request + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert len(server.engine.requests) == 3


def test_http_1_0_gets_a_stream_without_chunks(server: FakeServer) -> None:
    head, _, body = talk(server, post(STREAM, version=b"1.0")).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    lines = body.split(b"\n\n")
    assert [line[:6] for line in lines] == [b"data: "] * 4 + [b""]


def test_client_that_goes_ends_all_that_it_had_pipelined(server: FakeServer) -> None:
    server.engine.holds_after = 3
    raw = server.connect()
    raw.sendall(post(ENDLESS) + post(ENDLESS))
    until(lambda: server.engine.num_open == 1)
    raw.close()
    until(lambda: server.engine.num_open == 0)
    assert len(server.engine.aborted) == 1
    assert len(server.engine.requests) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"NONSENSE\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\xc4",
        b"\xff" * 9,
    ],
)
def test_what_is_no_http_is_one_line_in_the_log(
    server: FakeServer, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert "HTTP" in error_of(talk(server, garbage), 400)
    (record,) = caplog.records
    assert record.getMessage() == "127.0.0.1 refused with 400: this is not valid HTTP/1.1"


def test_connect_is_405(server: FakeServer) -> None:
    answer = talk(server, b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "CONNECT" in error_of(answer, 405)


def test_garbage_behind_a_stream_ends_it(engine: FakeEngine, server: FakeServer) -> None:
    engine.holds_after = 3
    engine.reply = fixed_reply("x" * 200, ends=False)
    with server.connect() as raw:
        raw.sendall(post(ENDLESS))
        raw.recv(100)
        raw.sendall(b"NONSENSE\r\n\r\n")
        rest = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b"HTTP/1.1 400" not in rest
    until(lambda: engine.num_open == 0)
