"""An OpenAI-compatible server whose streams are scripted, misbehaviour included."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


class Answer:
    """Writes one streamed answer; a script calls these in any order, wrong ones too."""

    def __init__(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self._writer = writer
        self.body = body
        self.is_chat = "messages" in body

    async def head(self, status: str = "200 OK", length: int | None = None) -> None:
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        await self.raw(f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\n{size}\r\n\r\n")

    async def raw(self, text: str | bytes) -> None:
        self._writer.write(text.encode() if isinstance(text, str) else text)
        await self._writer.drain()

    async def chunk(self, text: str) -> None:
        data = text.encode()
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, data: dict[str, Any]) -> None:
        await self.chunk(f"data: {json.dumps(data)}\n\n")

    async def text(self, text: str, finish_reason: str | None = None) -> None:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
        choice |= {"delta": {"content": text}} if self.is_chat else {"text": text}
        await self.event({"choices": [choice]})

    async def usage(self, num_prompt: int, num_output: int, cached: int | None = None) -> None:
        usage: dict[str, Any] = {"prompt_tokens": num_prompt, "completion_tokens": num_output}
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await self.event({"choices": [], "usage": usage})

    async def done(self) -> None:
        await self.chunk("data: [DONE]\n\n")
        await self.end()

    async def end(self) -> None:
        await self.raw("0\r\n\r\n")

    def reset(self) -> None:
        self._writer.transport.abort()


Script = Callable[[Answer], Awaitable[None]]


async def well_behaved(answer: Answer) -> None:
    """One event per token, with an empty one; usage of what was asked for."""
    num_tokens = answer.body["max_tokens"]
    num_prompt = num_fake_tokens(answer.body)
    await answer.head()
    if answer.is_chat:
        await answer.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for i in range(num_tokens):
        await answer.text("" if i == 1 else "x", "length" if i + 1 == num_tokens else None)
    await answer.usage(num_prompt, num_tokens, cached=0)
    await answer.done()


def num_fake_tokens(body: dict[str, Any]) -> int:
    """A begin token, and a token per word; "country" is two. A chat's template adds three."""
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    words = text.split()
    return 1 + len(words) + words.count("country") + (3 if "messages" in body else 0)


class FakeSseServer:
    """In a thread of its own. `script` answers each request; the numbers are what clients did."""

    def __init__(self, script: Script = well_behaved, *, has_tokenize: bool = True) -> None:
        self.script = script
        self.has_tokenize = has_tokenize
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.num_connections = 0
        self.num_running = 0
        self.max_running = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.url = ""

    def __enter__(self) -> FakeSseServer:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks: set[asyncio.Task[Any]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            self.num_connections += 1
            try:
                await self._serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                tasks.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.headers.append(head)
            size = next(
                (int(line[15:]) for line in head.splitlines() if line.startswith("Content-Length")),
                0,
            )
            body = json.loads(await reader.readexactly(size)) if size else {}
            path = head.split(" ")[1]
            if path in ("/v1/completions", "/v1/chat/completions"):
                await self._generate(Answer(writer, body))
            else:
                writer.write(self._answer(path, body))
                await writer.drain()

    async def _generate(self, answer: Answer) -> None:
        self.bodies.append(answer.body)
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            await self.script(answer)
        finally:
            self.num_running -= 1

    def _answer(self, path: str, body: dict[str, Any]) -> bytes:
        content: Any = {"error": {"message": "no such route"}}
        status = "404 Not Found"
        if path == "/v1/models":
            status, content = "200 OK", {"data": [{"id": "fake", "owned_by": "tests"}]}
        elif path == "/version":
            status, content = "200 OK", {"version": "1.2"}
        elif path == "/tokenize" and self.has_tokenize:
            status, content = "200 OK", {"tokens": [0] * num_fake_tokens(body)}
        data = json.dumps(content).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n"
        return head.encode() + data


def in_turn(scripts: Sequence[Script]) -> Script:
    """The first script answers the first request, and so on."""
    waiting = iter(scripts)

    async def script(answer: Answer) -> None:
        await next(waiting)(answer)

    return script
