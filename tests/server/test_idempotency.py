"""Requests that come again with their key: executed once, answered alike, forgotten in time."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from server_fakes import FakeEngine, FakeServer, fixed_reply

from takt.clock import ManualClock
from takt.server.errors import HttpError
from takt.server.idempotency_table import IdempotencyTable

BODY = {"prompt": "p", "seed": 1}
STREAM = {**BODY, "stream": True, "max_tokens": 20, "ignore_eos": True}
PATH = "/v1/completions"
REPLAYED = "idempotency-replayed"


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def ask(http: httpx.Client, key: str, body: dict[str, Any] = BODY, **headers: str) -> Any:
    return http.post(PATH, json=body, headers={"Idempotency-Key": key, **headers})


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_the_second_request_is_given_the_first_ones_bytes(
    http: httpx.Client, engine: FakeEngine, body: dict[str, Any]
) -> None:
    first, second = (ask(http, f"same-{len(body)}", body) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert first.headers["content-type"] == second.headers["content-type"]
    assert REPLAYED not in first.headers and second.headers[REPLAYED] == "true"
    assert len(engine.requests) == 1


def test_another_spelling_of_the_body_is_the_same_and_another_body_is_refused(
    http: httpx.Client, engine: FakeEngine
) -> None:
    ask(http, "spelled")
    spelled = http.post(
        PATH,
        content=b'{ "seed": 1.0, "prompt": "\\u0070" }',
        headers={"Idempotency-Key": '"spelled"', "Content-Type": "application/json"},
    )
    assert spelled.headers[REPLAYED] == "true"
    other = ask(http, "spelled", {**BODY, "seed": 2})
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert len(engine.requests) == 1


def test_keys_of_two_paths_and_two_credentials_never_meet(
    http: httpx.Client, engine: FakeEngine
) -> None:
    ask(http, "shared", Authorization="Bearer one")
    assert REPLAYED not in ask(http, "shared", Authorization="Bearer two").headers
    other = http.post("/generate", json=BODY, headers={"Idempotency-Key": "shared"})
    assert other.status_code == 200
    assert len(engine.requests) == 3


def test_requests_join_one_that_runs(http: httpx.Client, engine: FakeEngine) -> None:
    engine.pace_seconds = 0.02
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(lambda _: ask(http, "joined", STREAM), range(5)))
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].content.endswith(b"data: [DONE]\n\n")
    assert sum(REPLAYED in answer.headers for answer in answers) == 4
    assert len(engine.requests) == 1


def test_a_client_that_leaves_ends_nothing(server: FakeServer, http: httpx.Client) -> None:
    engine = server.engine
    engine.holds_after = 3
    raw = server.connect()
    body = json.dumps(STREAM).encode()
    raw.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nIdempotency-Key: left\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert raw.recv(64).startswith(b"HTTP/1.1 200")
    raw.close()
    wait_until(lambda: server.state.idempotency.num_unattended == 1)
    assert server.state.num_running == 1
    engine.holds_after = None
    again = ask(http, "left", STREAM)
    assert again.content.count(b"data: ") == 21
    assert not engine.aborted and len(engine.requests) == 1
    wait_until(lambda: server.state.num_running == 0)


def test_what_failed_is_executed_anew(http: httpx.Client, engine: FakeEngine) -> None:
    engine.dies_after = 3
    broken = ask(http, "broken", STREAM)
    assert b'"error"' in broken.content
    engine.dies_after = None
    engine.state = type(engine.state).READY
    whole = ask(http, "broken", STREAM)
    assert REPLAYED not in whole.headers and b'"error"' not in whole.content
    assert len(engine.requests) == 2
    assert ask(http, "refused", {"prompt": "p", "temperature": -1}).status_code == 400
    assert ask(http, "refused", BODY).status_code == 200


@pytest.mark.parametrize("key", ["", "é", "x" * 256, "a\tb"])
def test_a_key_that_is_none_is_refused(http: httpx.Client, engine: FakeEngine, key: str) -> None:
    answer = http.post(PATH, json=BODY, headers=[(b"Idempotency-Key", key.encode("latin-1"))])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"
    assert not engine.requests


def test_bodies_that_are_none_get_the_errors_they_would_get_without_a_key(
    http: httpx.Client,
) -> None:
    for content in (b"", b"{", b"[1]", b'{"a":' * 300 + b"1" + b"}" * 300):
        plain, keyed = (
            http.post(PATH, content=content, headers={"Content-Type": "application/json", **extra})
            for extra in ({}, {"Idempotency-Key": "bad-body"})
        )
        assert (plain.status_code, plain.json()) == (keyed.status_code, keyed.json())
        assert keyed.status_code == 400


def test_http_1_0_gets_a_replayed_stream_without_chunks(
    server: FakeServer, http: httpx.Client
) -> None:
    whole = ask(http, "old", STREAM)
    raw = server.connect()
    body = json.dumps(STREAM).encode()
    raw.sendall(
        b"POST /v1/completions HTTP/1.0\r\nIdempotency-Key: old\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
    )
    head, _, rest = _read_all(raw).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest == whole.content


def test_a_client_that_reads_nothing_holds_up_nobody(
    server: FakeServer, http: httpx.Client
) -> None:
    engine = server.engine
    engine.reply = fixed_reply("x" * 200, ends=False)
    body = json.dumps({**STREAM, "max_tokens": 200, "n": 8}).encode()
    stuck = server.connect(receive_buffer_bytes=2048)
    stuck.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nIdempotency-Key: stuck\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    stuck.recv(16)
    answer = ask(http, "stuck", json.loads(body))
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert len(engine.requests) == 1
    head, _, _ = _read_all(stuck, until=b"[DONE]\n\n\r\n0\r\n\r\n").partition(b"\r\n\r\n")
    assert head


def test_metrics_count_what_became_of_each(server: FakeServer, http: httpx.Client) -> None:
    def count(outcome: str) -> float:
        value = server.state.metrics.registry.get_sample_value(
            "takt_idempotent_requests_total",
            {"model_name": "fake-model", "engine": "0", "outcome": outcome},
        )
        assert value is not None
        return value

    before = {name: count(name) for name in ("executed", "replayed", "mismatch")}
    for body in (BODY, BODY, {**BODY, "seed": 9}):
        ask(http, "counted", body)
    assert {name: count(name) - value for name, value in before.items()} == {
        "executed": 1,
        "replayed": 1,
        "mismatch": 1,
    }
    assert "takt_idempotency_kept_bytes" in http.get("/metrics").text


def _read_all(raw: socket.socket, until: bytes | None = None) -> bytes:
    data = b""
    while piece := raw.recv(65536):
        data += piece
        if until is not None and data.endswith(until):
            break
    raw.close()
    return data


class TestTable:
    def table(self, clock: ManualClock, max_bytes: int = 1000) -> IdempotencyTable:
        return IdempotencyTable(10.0, max_bytes, clock)

    async def run(self, table: IdempotencyTable, name: str, size: int, status: int = 200) -> None:
        recording = table.begin(("", "/", name), "f")
        await recording.send({"type": "http.response.start", "status": status, "headers": []})
        await recording.send({"type": "http.response.body", "body": b"x" * size})
        table.end(("", "/", name))

    def add(self, table: IdempotencyTable, name: str, size: int = 10, status: int = 200) -> None:
        # Sending to a recording never waits, so that no loop is needed.
        with pytest.raises(StopIteration):
            self.run(table, name, size, status).send(None)

    def test_answers_are_forgotten_after_their_time(self) -> None:
        clock = ManualClock()
        table = self.table(clock)
        self.add(table, "a")
        clock.advance(9_999_999_999)
        assert table.find(("", "/", "a"), "f") is not None
        clock.advance(1)
        assert table.find(("", "/", "a"), "f") is None
        assert table.num_kept_bytes == 0

    def test_the_oldest_go_when_the_bytes_do_not_suffice(self) -> None:
        table = self.table(ManualClock())
        for name in "abcd":
            self.add(table, name, size=300)
        assert [name for name in "abcd" if table.find(("", "/", name), "f")] == ["c", "d"]
        assert table.num_kept == 2
        assert table.num_kept_bytes <= 1000

    def test_one_that_is_too_large_is_not_kept_and_drives_out_none(self) -> None:
        table = self.table(ManualClock())
        self.add(table, "a")
        self.add(table, "large", size=2000)
        assert table.find(("", "/", "large"), "f") is None
        assert table.find(("", "/", "a"), "f") is not None

    def test_failures_are_not_kept(self) -> None:
        table = self.table(ManualClock())
        self.add(table, "a", status=503)
        assert table.find(("", "/", "a"), "f") is None

    def test_another_body_is_a_mismatch_running_or_kept(self) -> None:
        table = self.table(ManualClock())
        table.begin(("", "/", "a"), "f")
        self.add(table, "b")
        for name in "ab":
            with pytest.raises(HttpError) as raised:
                table.find(("", "/", name), "other")
            assert raised.value.status == 422
