"""Requests that would cost the server, or every other client, more than they are worth."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import Any

import httpx
import pytest
from server_fakes import FakeEngine, FakeServer

from takt.server.json_size import MAX_MEMBERS, MAX_VALUES, exceeds_limits
from takt.server.state import BULK_SIZE

HI = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text[:300]
    return dict(response.json()["error"])


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"prompt": "a", **fields})


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"1," * MAX_VALUES + b"1,1]}",
        b'{"prompt": [' + b"[]," * MAX_MEMBERS + b"[]]}",
        b'{"prompt": [' + b"{}," * MAX_MEMBERS + b"{}]}",
        b'{"prompt": [' + b'"",' * MAX_VALUES + b'"",""]}',
        b'{"prompt": [' + b'"\\"",' * MAX_VALUES + b'"",""]}',
        b'{"a\\"": 1' + b',"\\\\": 1' * MAX_MEMBERS + b"}",
    ],
    ids=["numbers", "lists", "objects", "strings", "quotes", "members"],
)
def test_body_of_too_many_values_is_400(
    http: httpx.Client, engine: FakeEngine, body: bytes
) -> None:
    error = error_of(http.post("/v1/completions", content=body))
    assert str(MAX_VALUES) in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("text", ["[{:,", '"[', '\\"[', "\\\\", '\\\\" , [', "é[", "a\n[:,"])
def test_what_stands_inside_of_strings_is_not_counted(text: str) -> None:
    assert not exceeds_limits(json.dumps({text: [text * MAX_MEMBERS, text]}).encode())


def test_values_up_to_the_limit_are_let_through() -> None:
    assert not exceeds_limits(b"[" + b"1," * MAX_VALUES + b"1]")
    assert not exceeds_limits(b"[" + b"[]," * (MAX_MEMBERS - 1) + b"1]")


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("stop", [f"s{i}" for i in range(65)], 64),
        ("stop", "s" * 4097, 4096),
        ("stop_token_ids", [1] * 1025, 1024),
        ("logit_bias", {str(i): 1 for i in range(1025)}, 1024),
        ("cache_salt", "s" * 1025, 1024),
        ("prompt", [1] * 300, 256),
        ("prompt", ["a"] * 1025, 1024),
        ("prompt", [[1] * 300], 256),
    ],
)
def test_size_of_a_field_is_limited(
    http: httpx.Client, engine: FakeEngine, field: str, value: object, limit: int
) -> None:
    error = error_of(complete(http, **{field: value}))
    assert error["param"] == field
    assert str(limit) in error["message"]
    assert engine.requests == []


def test_more_messages_than_tokens_are_400(http: httpx.Client) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        error = error_of(http.post(path, json={"messages": HI * 257}))
        assert error["param"] == "messages"
        assert "257" in error["message"]
        assert "256" in error["message"]


def test_sequences_that_can_never_be_taken_are_400_not_429(
    http: httpx.Client, engine: FakeEngine
) -> None:
    error = error_of(complete(http, prompt=["a"] * 1024, n=5))
    assert error["param"] == "n"
    assert "5120" in error["message"]
    assert engine.requests == []


def test_priority_needs_its_policy(server: FakeServer, http: httpx.Client) -> None:
    assert complete(http, priority=-3).status_code == 200
    assert server.engine.requests[0].priority == -3
    assert server.state.model is not None
    server.state.model = dataclasses.replace(server.state.model, has_priorities=False)
    assert complete(http, priority=0).status_code == 200
    error = error_of(complete(http, priority=1))
    assert error["param"] == "priority"
    assert "--scheduling-policy" in error["message"]


def test_many_unknown_fields_are_told_of_by_the_first(http: httpx.Client) -> None:
    error = error_of(complete(http, **{f"key{i}": 1 for i in range(20_000)}))
    assert error["param"] == "key0"


def test_long_text_in_an_error_is_cut(http: httpx.Client) -> None:
    body = b'{"prompt": "a", "seed": ' + b"9" * 4000 + b"}"
    message = error_of(http.post("/v1/completions", content=body))["message"]
    assert message.startswith("seed must fit 64 bits, got 999")
    assert len(message) == 1000


def test_text_to_tokenise_is_limited(http: httpx.Client) -> None:
    error = error_of(http.post("/tokenize", json={"prompt": "a" * (4 * 1024 * 1024 + 1)}))
    assert error["param"] == "prompt"


def test_large_work_does_not_keep_small_work_waiting(
    server: FakeServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    encode = server.tokenizer.encode

    def slow_encode(text: str, **options: bool) -> list[int]:
        if len(text) > BULK_SIZE:
            assert go_on.wait(60)
            return [1]
        return encode(text, **options)

    monkeypatch.setattr(server.tokenizer, "encode", slow_encode)
    large: list[httpx.Response] = []

    def ask() -> None:
        response = httpx.post(
            f"{server.url}/tokenize", json={"prompt": "a" * (BULK_SIZE + 1)}, timeout=120
        )
        large.append(response)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while server.state.num_in_flight < 6:
        time.sleep(0.005)
    assert http.post("/v1/chat/completions", json={"messages": HI}).status_code == 200
    assert large == []
    go_on.set()
    for thread in threads:
        thread.join()
    assert [response.json()["count"] for response in large] == [1] * 6


@pytest.mark.parametrize(
    ("headers", "status", "word"),
    [
        ({"Content-Encoding": "gzip"}, 415, "gzip"),
        ({"Content-Encoding": "identity"}, 200, ""),
        ({"Content-Type": "application/json; charset=utf-16"}, 400, "utf-16"),
        ({"Content-Type": 'application/json; Charset="UTF-8"'}, 200, ""),
        ({"Content-Type": "application/json;charset=us-ascii"}, 200, ""),
    ],
)
def test_body_that_is_no_utf_8_is_named(
    http: httpx.Client, headers: dict[str, str], status: int, word: str
) -> None:
    response = http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert response.status_code == status
    assert word in response.text


def test_template_arguments_cannot_replace_what_the_server_sets(http: httpx.Client) -> None:
    for name in ("self", "takt_deadline_check", "context", "environment"):
        body = {"messages": HI, "chat_template_kwargs": {name: 1}}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
