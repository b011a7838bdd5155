"""OpenAI's client, unchanged, with the gateway's URL."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from harness import Harness
from scripted_upstream import DONE, ScriptedUpstream, answer, stream


def completion(text: str, **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}
    choice["message"]["content"] = text  # type: ignore[index]
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | changes


def chunk(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}}
    body = completion("", object="chat.completion.chunk", choices=[choice])
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def test_answers_and_streams_are_those_of_the_first_call(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [
            answer(429),
            answer(text=json.dumps(completion("hello"))),
            stream([chunk("a"), chunk("b"), DONE]),
        ]
        async with (
            Harness([upstream], sqlite_url) as gateway,
            openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k") as client,
        ):
            for _ in range(2):
                whole = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hi"}],
                    extra_headers={"Idempotency-Key": "one"},
                )
                assert whole.choices[0].message.content == "hello"
            for _ in range(2):
                streamed = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hi"}],
                    stream=True,
                    extra_headers={"Idempotency-Key": "two"},
                )
                texts = [one.choices[0].delta.content async for one in streamed]
                assert texts == ["a", "b"]
        assert len(upstream.seen) == 3

    runner.run(scenario())
