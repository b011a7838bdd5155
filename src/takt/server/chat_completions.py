"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from takt.errors import InvalidRequestError
from takt.loading.base import Tokenizer
from takt.server.answers import (
    check_length,
    check_num_messages,
    new_id,
    prepare,
    read_request,
    respond,
)
from takt.server.chat_messages import num_message_chars
from takt.server.generation import Choice, Generation, TokenEvent
from takt.server.logprobs import chat_logprob, prompt_logprobs
from takt.server.prompts import Prompt
from takt.server.protocol import ChatCompletionRequest
from takt.server.sse import DONE, Envelope, event_end
from takt.server.state import ServedModel, ServerState
from takt.server.stream import EventStream

_encode = msgspec.json.encode


async def create_chat_completion(request: Request, state: ServerState) -> Response | EventStream:
    arrival_ns = state.clock.now_ns()
    fields, headers = await read_request(request, state, ChatCompletionRequest)
    model = state.ready_model(fields.model)
    fields.check()
    prompt = await _render(fields, model, state)
    generation = prepare(
        fields,
        model,
        [prompt],
        request_id=new_id("chatcmpl"),
        wanted_tokens=fields.token_limit,
        default_tokens=model.default_max_tokens,
        logprobs=fields.num_logprobs,
        scores_prompt=False,
    )
    kind = "chat.completion.chunk" if fields.stream else "chat.completion"
    envelope = Envelope.new(generation.request_id, kind, model.name, fields.wants_usage)
    tokenizer = model.tokenizer
    return await respond(
        request,
        state,
        generation,
        ChatFormat(envelope, generation, tokenizer, fields.num_logprobs) if fields.stream else None,
        ChatCollector(envelope, generation, tokenizer, fields),
        arrival_ns=arrival_ns,
        headers=headers,
    )


async def _render(fields: ChatCompletionRequest, model: ServedModel, state: ServerState) -> Prompt:
    check_num_messages(len(fields.messages), model)
    num_chars = num_message_chars(fields.messages)
    check_length(num_chars, model, fields.prompt_field)
    token_ids = await state.in_text_pool(
        lambda: model.chat.encode(
            fields.messages,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            template_kwargs=fields.chat_template_kwargs,
        ),
        num_chars,
    )
    if not token_ids:
        raise InvalidRequestError("the chat renders to no tokens", param="messages")
    return Prompt(token_ids, None)


class ChatFormat:
    """Chunks of a streamed chat: for each choice its role first, then one per token."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(
        self,
        envelope: Envelope,
        generation: Generation,
        tokenizer: Tokenizer,
        num_logprobs: int | None,
    ) -> None:
        self._envelope = envelope
        self._generation = generation
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs
        self._prefixes = [
            envelope.head + b'{"index":%d,"delta":{"content":' % choice.index
            for choice in generation.choices
        ]
        self._plain_end = b"}" + event_end(None, None, None, envelope.tail)
        self._has_role = [False] * len(generation.choices)

    def event(self, event: TokenEvent) -> bytes:
        choice = event.choice
        index = choice.index
        role = b""
        if not self._has_role[index]:
            self._has_role[index] = True
            role = self._role_event(index)
        content = _encode(event.delta)
        if event.logprob is None and event.finish_reason is None:
            return role + self._prefixes[index] + content + self._plain_end
        logprobs = None
        if event.logprob is not None and self._num_logprobs is not None:
            entry = chat_logprob(self._tokenizer, event.logprob, self._num_logprobs)
            logprobs = {"content": [entry], "refusal": None}
        end = event_end(logprobs, event.finish_reason, choice.stop_reason, self._envelope.tail)
        return role + self._prefixes[index] + content + b"}" + end

    def _role_event(self, index: int) -> bytes:
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""' % index
        return self._envelope.head + delta + self._plain_end

    def end(self) -> bytes:
        return self._envelope.usage_event(self._generation.usage()) + DONE

    def error(self, body: bytes) -> bytes:
        return b"data: " + body + b"\n\n" + DONE


class ChatCollector:
    """A chat that is answered as a whole."""

    def __init__(
        self,
        envelope: Envelope,
        generation: Generation,
        tokenizer: Tokenizer,
        fields: ChatCompletionRequest,
    ) -> None:
        self._envelope = envelope
        self._generation = generation
        self._tokenizer = tokenizer
        self._num_logprobs = fields.num_logprobs
        self._wants_prompt_logprobs = fields.prompt_logprobs is not None
        self._events: list[list[TokenEvent]] = [[] for _ in generation.choices]

    def add(self, event: TokenEvent) -> None:
        self._events[event.choice.index].append(event)

    def result(self) -> dict[str, Any]:
        choices = [self._choice(choice) for choice in self._generation.choices]
        result = self._envelope.whole(choices, self._generation.usage())
        if self._wants_prompt_logprobs:
            run = self._generation.runs[0]
            result["prompt_logprobs"] = prompt_logprobs(self._tokenizer, run.logprobs)
        return result

    def _choice(self, choice: Choice) -> dict[str, Any]:
        events = self._events[choice.index]
        content = "".join([event.delta for event in events])
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": self._logprobs(events),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _logprobs(self, events: list[TokenEvent]) -> dict[str, Any] | None:
        if self._num_logprobs is None:
            return None
        entries = [
            chat_logprob(self._tokenizer, event.logprob, self._num_logprobs)
            for event in events
            if event.logprob is not None
        ]
        return {"content": entries, "refusal": None}
