"""What is refused, with which status, in OpenAI's error body; and what is harmless."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from server_fakes import FakeEngine, FakeServer

HI = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return dict(error)


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"prompt": "a", **fields})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "5"),
        ("max_tokens", 5.5),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 10**30),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 10**400),
        ("min_p", 2),
        ("n", 0),
        ("n", 129),
        ("n", 1.5),
        ("seed", 1.5),
        ("seed", "7"),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", ["a", ""]),
        ("stop_token_ids", [260]),
        ("stop_token_ids", [-1]),
        ("logprobs", 21),
        ("logprobs", True),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("logit_bias", {"260": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [1]),
        ("stream", "yes"),
        ("echo", 1),
        ("min_tokens", 17),
        ("priority", 10**30),
        ("stream_options", {"include_usage": True}),
        ("best_of", 2),
        ("model", 5),
    ],
)
def test_wrong_type_or_range_names_the_field(
    http: httpx.Client, engine: FakeEngine, field: str, value: object
) -> None:
    error = error_of(complete(http, **{field: value}))
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(field.split("[")[0])
    assert engine.requests == []


@pytest.mark.parametrize(
    "prompt",
    [None, [], "", [""], ["a", ""], [[]], [[1], []], [260], [-1], [1.5], [True], [1, "a"],
     [[1], "a"], [["a"]], {"a": 1}, 5, ["a"] * 1025],
)  # fmt: skip
def test_prompt_of_no_use_names_prompt(
    http: httpx.Client, engine: FakeEngine, prompt: object
) -> None:
    assert error_of(complete(http, prompt=prompt))["param"] == "prompt"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("chat", "tools", [{"type": "function", "function": {"name": "f"}}]),
        ("chat", "tool_choice", "required"),
        ("chat", "tool_choice", {"type": "function"}),
        ("chat", "response_format", {"type": "json_object"}),
        ("chat", "response_format", {"type": "json_schema", "json_schema": {}}),
        ("chat", "modalities", ["text", "audio"]),
        ("chat", "audio", {"voice": "x"}),
        ("chat", "functions", [{"name": "f"}]),
        ("chat", "reasoning_effort", "high"),
        ("chat", "echo", True),
        ("chat", "best_of", 2),
        ("text", "suffix", "end"),
        ("text", "use_beam_search", True),
        ("text", "guided_json", {"type": "object"}),
        ("text", "bad_words", ["x"]),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, path: str, field: str, value: object
) -> None:
    if path == "chat":
        response = http.post("/v1/chat/completions", json={"messages": HI, field: value})
    else:
        response = complete(http, **{field: value})
    error = error_of(response)
    assert error["param"] == field
    assert field in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("body", [{}, {"messages": None}])
def test_a_missing_field_is_named(http: httpx.Client, body: dict[str, Any]) -> None:
    error = error_of(http.post("/v1/chat/completions", json=body))
    assert error["param"] == "messages"
    assert "missing" in error["message"]


NEUTRAL: dict[str, Any] = {
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "stop": [],
    "logit_bias": {},
    "functions": None,
    "audio": None,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "temperature": None,
    "seed": None,
    "max_tokens": None,
    "stream_options": None,
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "safety_identifier": "s",
}


@pytest.mark.parametrize("field", NEUTRAL)
def test_null_empty_neutral_and_harmless_fields_are_accepted(
    http: httpx.Client, field: str
) -> None:
    value = {field: NEUTRAL[field]}
    chat = http.post("/v1/chat/completions", json={"messages": HI, **value})
    assert chat.status_code == 200, chat.text
    text = complete(http, **value)
    assert text.status_code == 200, text.text


def test_neutral_values_are_the_defaults(http: httpx.Client, engine: FakeEngine) -> None:
    assert complete(http, seed=1).status_code == 200
    assert complete(http, seed=1, stop="", temperature=None, logprobs=False).status_code == 200
    first, second = (request.sampling for request in engine.requests)
    assert first == second


def test_unknown_field_gets_the_nearest_name(http: httpx.Client) -> None:
    error = error_of(complete(http, max_token=5))
    assert (error["param"], error["code"]) == ("max_token", "unknown_parameter")
    assert "max_tokens" in error["message"]
    assert error_of(complete(http, zzz=5))["param"] == "zzz"


def test_unknown_field_can_be_a_warning() -> None:
    with (
        FakeServer(allow_unknown_fields=True) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for stream in (False, True):
            response = complete(http, **{'sp"é\r\nam': 5, "stream": stream})
            assert response.status_code == 200
            assert "unknown fields were ignored" in response.headers["warning"]
        assert error_of(complete(http, tools=[1]))["param"] == "tools"


def test_unknown_stream_option_is_refused(http: httpx.Client) -> None:
    error = error_of(complete(http, stream=True, stream_options={"include": True}))
    assert "include" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a" "b"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}",
        "{'prompt': 'a'}".encode("utf-16"),
    ],
)
def test_malformed_body_is_400(http: httpx.Client, body: bytes) -> None:
    error_of(
        http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    )
    assert complete(http).status_code == 200


@pytest.mark.parametrize("text", ["\\ud800", "\\ud800 and more text"])
def test_lone_surrogate_is_400_or_harmless(http: httpx.Client, text: str) -> None:
    body = b'{"prompt": "%s"}' % text.encode()
    error_of(http.post("/v1/completions", content=body))


def test_nul_and_controls_are_text(http: httpx.Client, engine: FakeEngine) -> None:
    assert complete(http, prompt="\0\x1f").status_code == 200
    assert engine.requests[0].prompt_token_ids == [0, 31]


def test_wrong_content_type_is_400(http: httpx.Client) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        response = http.post(
            "/v1/completions", content=b'{"prompt":"a"}', headers={"Content-Type": content_type}
        )
        assert content_type in error_of(response)["message"]
    response = http.post(
        "/v1/completions",
        content=b'{"prompt":"a"}',
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
    assert response.status_code == 200


def test_unknown_model_is_404(http: httpx.Client, model: str) -> None:
    error = error_of(complete(http, model="gpt-9"), 404)
    assert error["code"] == "model_not_found"
    assert model in error["message"]
    assert complete(http, model="other-name").json()["model"] == model
    error_of(http.get("/v1/models/gpt-9"), 404)


def test_unknown_route_and_wrong_method_have_the_error_body(http: httpx.Client) -> None:
    error_of(http.get("/v2/nothing"), 404)
    response = http.get("/v1/completions")
    error_of(response, 405)
    assert response.headers["allow"] == "POST"
    error_of(http.delete("/v1/models"), 405)


def exchange(server: FakeServer, *parts: bytes) -> socket.socket:
    raw = server.connect()
    for part in parts:
        raw.sendall(part)
    return raw


def read_response(raw: socket.socket, data: bytes = b"") -> tuple[int, bytes, bytes]:
    """Status, body and what follows of one response with a content-length."""
    while b"\r\n\r\n" not in data:
        data += raw.recv(65536) or pytest.fail("closed")
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    ]
    while len(body) < lengths[0]:
        body += raw.recv(65536) or pytest.fail("closed")
    return int(head.split()[1]), body[: lengths[0]], body[lengths[0] :]


def test_body_too_large_is_413_and_the_connection_stays_right() -> None:
    good = json.dumps({"prompt": "a"}).encode()
    with FakeServer(max_request_bytes=1000) as server:
        large = b"x" * 200_000
        raw = exchange(
            server,
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(large),
            large,
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(good), good),
        )
        status, body, rest = read_response(raw)
        assert status == 413
        assert b"1000" in body
        status, _, _ = read_response(raw, rest)
        assert status == 200
        raw.close()
        chunked = httpx.post(f"{server.url}/v1/completions", content=iter([b"x" * 600] * 3))
        error_of(chunked, 413)


def test_unread_body_of_an_early_error_is_not_the_next_request(server: FakeServer) -> None:
    trap = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    good = json.dumps({"prompt": "a"}).encode()
    raw = exchange(
        server,
        b"POST /v1/nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(trap),
        trap,
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(good), good),
    )
    status, _, rest = read_response(raw)
    assert status == 404
    status, body, rest = read_response(raw, rest)
    assert status == 200
    assert json.loads(body)["object"] == "text_completion"
    assert rest == b""
    raw.close()


def test_broken_http_gets_the_error_body(server: FakeServer) -> None:
    raw = exchange(server, b"NONSENSE\r\n\r\n")
    status, body, _ = read_response(raw)
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    raw.close()


def test_chat_needs_messages(http: httpx.Client) -> None:
    for body in ({}, {"messages": None}, {"messages": []}, {"messages": "hi"}):
        assert "messages" in error_of(http.post("/v1/chat/completions", json=body))["message"]
    for limit in ("max_tokens", "max_completion_tokens"):
        body = {"messages": HI, limit: 0}
        assert error_of(http.post("/v1/chat/completions", json=body))["param"] == limit
    body = {"messages": HI, "top_logprobs": 2}
    assert error_of(http.post("/v1/chat/completions", json=body))["param"] == "top_logprobs"
