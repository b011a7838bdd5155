"""POST /generate: vLLM's plain API, one prompt and its continuations."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from takt.server.answers import check_length, new_id, prepare, read_request, respond
from takt.server.generation import Generation, TokenEvent
from takt.server.prompts import list_prompts, read_prompts
from takt.server.protocol import DEFAULT_COMPLETION_TOKENS, GenerationRequest
from takt.server.state import ServerState
from takt.server.stream import EventStream


class GenerateRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: str


async def generate(request: Request, state: ServerState) -> Response | EventStream:
    """`{"text": [prompt + continuation, ...]}`, or with `stream` one such line per token."""
    arrival_ns = state.clock.now_ns()
    fields, headers = await read_request(request, state, GenerateRequest)
    model = state.ready_model(fields.model)
    fields.check_stream()
    check_length(len(fields.prompt), model, fields.prompt_field)
    prompts = await state.in_text_pool(
        lambda: read_prompts(
            list_prompts(fields.prompt),
            model.tokenizer,
            vocab_size=model.engine.info.vocab_size,
            add_special_tokens=True,
        ),
        len(fields.prompt),
    )
    generation = prepare(
        fields,
        model,
        prompts,
        request_id=new_id("gen"),
        wanted_tokens=fields.max_tokens,
        default_tokens=DEFAULT_COMPLETION_TOKENS,
        logprobs=None,
        scores_prompt=False,
    )
    texts = _Texts(generation, fields.prompt)
    return await respond(
        request,
        state,
        generation,
        texts if fields.stream else None,
        texts,
        arrival_ns=arrival_ns,
        headers=headers,
    )


class _Texts:
    """The texts so far, of all choices; both a stream's format and a collector."""

    content_type = b"application/x-ndjson"

    def __init__(self, generation: Generation, prompt: str) -> None:
        self._texts = [prompt] * len(generation.choices)

    def add(self, event: TokenEvent) -> None:
        self._texts[event.choice.index] += event.delta

    def result(self) -> dict[str, Any]:
        return {"text": self._texts}

    def event(self, event: TokenEvent) -> bytes:
        self.add(event)
        return msgspec.json.encode(self.result()) + b"\n"

    def end(self) -> bytes:
        return b""

    def error(self, body: bytes) -> bytes:
        return body + b"\n"
