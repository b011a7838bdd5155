"""Server-sent events: one per token, nothing withdrawn, slow and vanished clients, errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from server_fakes import FakeEngine, FakeServer, fixed_reply, refuse, seeded_reply

from takt.errors import OverloadedError

HI = [{"role": "user", "content": "hi"}]


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_every_token_has_its_own_event_and_the_last_one_the_reason(
    http: httpx.Client, engine: FakeEngine
) -> None:
    engine.reply = fixed_reply("a€ STOX", ends=False)
    body = {"prompt": "p", "stream": True, "stop": "STOP"}
    chunks = events(http.post("/v1/completions", json=body))
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert texts == ["a", "", "", "€", " ", "", "", "", "STOX"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 8 + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "usage" not in chunks[0]


def test_usage_comes_last_and_is_null_before(http: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = fixed_reply("ab")
    body = {"messages": HI, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(http.post("/v1/chat/completions", json=body))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


def test_chat_begins_with_the_role(http: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = fixed_reply("ab")
    chunks = events(http.post("/v1/chat/completions", json={"messages": HI, "stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {"content": ""},
    ]


@pytest.mark.parametrize("reply", ["plain", "é€😀", "one STOP two", b"\xe2\x82 broken \xf0\x9f"])
def test_streaming_equals_not_streaming(
    client: openai.OpenAI, engine: FakeEngine, model: str, reply: str | bytes
) -> None:
    engine.reply = fixed_reply(reply)
    fields: dict[str, Any] = {"model": model, "prompt": "p", "stop": ["STOP"], "n": 2, "seed": 1}
    fields |= {"max_tokens": 40, "logprobs": 1, "echo": True}
    whole = client.completions.create(**fields)
    texts = ["", ""]
    tokens: list[list[str]] = [[], []]
    offsets: list[list[int]] = [[], []]
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                tokens[choice.index] += choice.logprobs.tokens
                offsets[choice.index] += choice.logprobs.text_offset
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    for choice, streamed in zip(whole.choices, offsets, strict=True):
        assert choice.logprobs.text_offset == [min(o, len(choice.text)) for o in streamed]


def test_stop_string_never_leaks_and_aborts_only_its_choice(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = lambda request, choice: list(b"one STOP two" if choice else b"three four")
    texts, reasons = ["", ""], [None, None]
    stream = client.completions.create(
        model=model, prompt="p", n=2, stop="STOP", stream=True, max_tokens=12
    )
    for chunk in stream:
        choice = chunk.choices[0]
        assert "S" not in choice.text
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == ["three four", "one "]
    assert reasons == ["length", "stop"]
    assert engine.aborted == [(engine.requests[0].request_id, 1)]


def test_list_of_prompts_streams_every_choice(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.reply = lambda request, choice: [*request.prompt_token_ids, 48 + choice]
    texts = [""] * 4
    for chunk in client.completions.create(model=model, prompt=["ab", "c"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["ab0", "ab1", "c0", "c1"]


def test_stream_with_scoring_only(http: httpx.Client) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 0, "logprobs": 0, "stream": True}
    first, last = events(http.post("/v1/completions", json=body))
    assert first["choices"][0]["text"] == "ab"
    assert first["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5]
    assert last["choices"][0]["finish_reason"] == "length"


def test_refusal_of_the_engine_comes_before_the_first_byte(
    http: httpx.Client, engine: FakeEngine
) -> None:
    engine.refusal = refuse("no room for 9 in 8", "max_tokens")
    for prompt in ("a", ["a", "b"]):
        response = http.post("/v1/completions", json={"prompt": prompt, "stream": True})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "max_tokens"


def test_full_queue_is_429_with_retry_after(http: httpx.Client, engine: FakeEngine) -> None:
    engine.refusal = OverloadedError("busy", retry_after_seconds=7)
    response = http.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_engine_death_before_the_first_byte_is_503(http: httpx.Client, engine: FakeEngine) -> None:
    engine.dies_after = 0
    response = http.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert http.get("/health").status_code == 503
    later = http.post("/v1/completions", json={"prompt": "a"})
    assert later.status_code == 503
    assert "retry-after" in later.headers


def test_engine_death_in_a_stream_is_an_error_event(
    client: openai.OpenAI, engine: FakeEngine, model: str
) -> None:
    engine.dies_after = 3
    text = ""
    stream = client.completions.create(model=model, prompt="a", stream=True)
    with pytest.raises(openai.APIError, match="the engine died"):
        for chunk in stream:
            text += chunk.choices[0].text
    assert len(text) == 3


def test_vanished_client_aborts_its_request(server: FakeServer, engine: FakeEngine) -> None:
    engine.holds_after = 3
    for stream in (True, False):
        body = json.dumps({"prompt": "a", "stream": stream, "max_tokens": 64}).encode()
        raw = server.connect()
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        wait_until(lambda: engine.num_open == 1)
        if stream:
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
        raw.close()
        request_id = engine.requests[-1].request_id
        wait_until(lambda rid=request_id: (rid, None) in engine.aborted)
        wait_until(lambda: engine.num_open == 0)
    wait_until(lambda: server.state.num_in_flight == 0)


def test_reader_that_stops_is_cut_off_and_disturbs_nobody() -> None:
    engine = FakeEngine()
    engine.max_model_len = engine.num_kv_tokens = 1_000_000
    engine.reply = lambda request, choice: [97] * (request.sampling.max_tokens or 0)
    with FakeServer(engine, stream_buffer_tokens=100) as server:
        raw = server.connect(receive_buffer_bytes=4096)
        body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 100_000}).encode()
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        wait_until(lambda: len(engine.requests) == 1)
        with httpx.Client(base_url=server.url, timeout=200) as other:
            answer = other.post("/v1/completions", json={"prompt": "b", "max_tokens": 50}).json()
            assert answer["choices"][0]["text"] == "a" * 50
        wait_until(lambda: engine.num_open == 0)
        wait_until(lambda: server.state.num_in_flight == 0)
        received = 0
        try:
            while chunk := raw.recv(65536):
                received += len(chunk)
        except ConnectionResetError:
            pass
        raw.close()
        assert received < 100_000 * 50


def test_reader_that_pauses_gets_everything_in_order() -> None:
    engine = FakeEngine()
    engine.max_model_len = engine.num_kv_tokens = 1_000_000
    tokens = 4000
    engine.reply = lambda request, choice: [97 + i % 26 for i in range(tokens)]
    with FakeServer(engine, stream_buffer_tokens=tokens) as server:
        raw = server.connect(receive_buffer_bytes=4096)
        body = json.dumps({"prompt": "a", "stream": True, "max_tokens": tokens}).encode()
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        wait_until(lambda: engine.requests != [] and engine.num_open == 0)
        data = b""
        while chunk := raw.recv(65536):
            data += chunk
        raw.close()
    chunks = [line for line in data.split(b"\r\n") if line.startswith(b"data: ")]
    lines = [line for chunk in chunks for line in chunk.split(b"\n\n") if line]
    assert lines.pop() == b"data: [DONE]"
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)
    assert text == "".join(chr(97 + i % 26) for i in range(tokens))


def test_512_streams_at_once_all_complete_and_none_is_mixed_up() -> None:
    engine = FakeEngine()
    with FakeServer(engine) as server:
        texts = asyncio.run(read_streams(server.port, 512))
    expected = [
        "".join(map(chr, seeded_reply(request, 0)[:20]))
        for request in sorted(engine.requests, key=lambda r: r.sampling.seed or 0)
    ]
    assert texts == expected
    assert len(set(texts)) == 512


async def read_streams(port: int, count: int) -> list[str]:
    async def read(seed: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 20, "seed": seed}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        lines = [line for line in data.split(b"\n") if line.startswith(b"data: ")]
        assert lines.pop() == b"data: [DONE]"
        return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)

    return await asyncio.gather(*[read(seed) for seed in range(count)])
