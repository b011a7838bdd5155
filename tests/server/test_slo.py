"""GET /slo, its counters and `takt explain`: planted causes are named on running servers."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_process import served_process
from server_fakes import FakeEngine, FakeServer

from takt.cli import explain
from takt.errors import ConfigError, TaktError

SCRIPT = Path(__file__).with_name("fake_serve.py")


def test_a_fresh_server_has_nothing_late(server: FakeServer, http: httpx.Client) -> None:
    answer = http.get("/slo").json()
    assert answer["targets"]["itl_p99_ms"] == 12
    assert not answer["targets"]["itl_is_given"]
    assert answer["late_gaps"]["num"] == 0


def test_tokens_are_counted_streamed_or_not() -> None:
    with FakeServer() as server, httpx.Client(base_url=server.url, timeout=200) as http:
        for stream in (True, False):
            body = {"prompt": "xyz", "stream": stream, "max_tokens": 5, "n": 2}
            assert http.post("/v1/completions", json=body).status_code == 200
        answer = http.get("/slo").json()
        assert answer["itl"]["num"] == 16
        assert answer["ttft"]["num"] == 2
        assert answer["goodput"]["num_requests"] == 2
        text = http.get("/metrics").text
    assert 'takt_late_gap_seconds_total{cause="slow_client"' in text
    assert 'takt_slo_target_seconds{engine="0",model_name="fake-model",slo="itl"} 0.012' in text


def test_scores_alone_are_no_requests_of_goodput() -> None:
    with FakeServer() as server, httpx.Client(base_url=server.url, timeout=200) as http:
        body = {"prompt": "xyz", "max_tokens": 0, "echo": True, "logprobs": 0}
        assert http.post("/v1/completions", json=body).status_code == 200
        assert http.get("/slo").json()["goodput"]["num_requests"] == 0


@pytest.mark.parametrize("worst", ["-1", "x", "", "1025", "1e3", "1" * 5000])
def test_a_wrong_number_of_worst_tokens_is_an_error(http: httpx.Client, worst: str) -> None:
    answer = http.get("/slo", params={"worst": worst})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "worst"


def test_slo_needs_the_key_where_there_is_one() -> None:
    with FakeServer(api_key=("secret",)) as server:
        assert httpx.get(f"{server.url}/slo").status_code == 401
        with pytest.raises(TaktError, match="--api-key"):
            explain.fetch(server.url, None)
        assert explain.fetch(server.url, "secret")["late_gaps"]["num"] == 0


def test_a_client_that_stops_reading_is_named() -> None:
    engine = FakeEngine()
    engine.max_model_len = engine.num_kv_tokens = 1_000_000
    tokens = 6000
    engine.reply = lambda request, choice: [97] * tokens
    with FakeServer(engine, stream_buffer_tokens=tokens) as server:
        raw = server.connect(receive_buffer_bytes=4096)
        body = json.dumps({"prompt": "a", "stream": True, "max_tokens": tokens}).encode()
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        while not server.is_held_up:
            time.sleep(0.01)
        time.sleep(0.5)
        while raw.recv(65536):
            pass
        raw.close()
        late = httpx.get(f"{server.url}/slo").json()["late_gaps"]
    assert late["num"] >= 1
    assert late["causes"]["slow_client"]["ms"] >= 200


@pytest.fixture(scope="module")
def late_server() -> Any:
    """Behind it a real engine process that is late for reasons which are planted."""
    with served_process(str(SCRIPT), "fake:late", "port=0") as server:
        yield server.url()


def stream(url: str, prompt: list[int], max_tokens: int) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=200)
    assert response.status_code == 200
    assert response.text.endswith("[DONE]\n\n")


def test_forced_collections_and_long_prompts_are_named(late_server: str) -> None:
    """A gap of which one of both took more than half has one of both as its cause."""
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            stream(late_server, [1] * 8, 240)

    reader = threading.Thread(target=read)
    reader.start()
    for index in range(14):
        stream(late_server, [2 + index] * 120, 2)
    is_over.set()
    reader.join()
    answer = httpx.get(f"{late_server}/slo").json()
    causes = answer["late_gaps"]["causes"]
    assert causes["garbage_collection"]["ms"] > 0
    assert causes["prefill_interference"]["ms"] > 0
    for token in answer["worst_gaps"]:
        split = token["causes"]
        assert sum(split.values()) == pytest.approx(token["ms"], rel=0.02)
    planted = {"garbage_collection", "prefill_interference"}
    for token in answer["worst_gaps"]:
        rest = {name: ms for name, ms in token["causes"].items() if name != "base"}
        if any(rest.get(name, 0) > 0.5 * token["ms"] for name in planted):
            assert max(rest, key=lambda name: rest[name]) in planted


def test_explain_prints_tables_and_json(
    late_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stream(late_server, [1] * 8, 100)
    report = explain.fetch(late_server, None)
    from rich.console import Console

    explain.show(Console(width=120, highlight=False), report, 3)
    printed = capsys.readouterr().out
    assert "gap between tokens" in printed
    assert "Worst gaps" in printed
    assert "garbage_collection" in printed
    assert "█" in printed


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_explain_says_so_where_something_else_answers(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TaktError, match=url):
            explain.fetch(url, None)
        thread.join()


@pytest.mark.parametrize("url", ["http://[::1", "http://x y", "http://127.0.0.1:99999"])
def test_explain_says_so_of_a_url_that_is_none(url: str) -> None:
    with pytest.raises(TaktError):
        explain.fetch(url, None)


def test_explain_says_in_one_line_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="http://"):
        explain.fetch("localhost:8000", None)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(TaktError, match="no server answers there"):
            explain.fetch(f"http://127.0.0.1:{port}", None)
