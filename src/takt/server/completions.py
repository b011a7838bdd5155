"""POST /v1/completions: text, token ids, several prompts, scoring."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from takt.loading.base import Tokenizer
from takt.server.answers import check_num_tokens, new_id, prepare, read_request, respond
from takt.server.generation import Choice, Generation, TokenEvent
from takt.server.logprobs import CompletionLogprobs, prompt_logprobs
from takt.server.prompts import (
    Prompt,
    list_prompts,
    longest_prompt,
    prompts_size,
    read_prompts,
)
from takt.server.protocol import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from takt.server.sse import DONE, Envelope, event_end
from takt.server.state import ServedModel, ServerState
from takt.server.stream import EventStream

INLINE_SIZE = 2048
"""Prompts up to this size are tokenised on the event loop: a thread would take longer."""

_encode = msgspec.json.encode


async def create_completion(request: Request, state: ServerState) -> Response | EventStream:
    arrival_ns = state.clock.now_ns()
    fields, headers = await read_request(request, state, CompletionRequest)
    model = state.ready_model(fields.model)
    fields.check()
    prompts = await _read_prompts(fields, model, state)
    generation = prepare(
        fields,
        model,
        prompts,
        request_id=new_id("cmpl"),
        wanted_tokens=fields.max_tokens,
        default_tokens=DEFAULT_COMPLETION_TOKENS,
        logprobs=fields.num_logprobs,
        scores_prompt=fields.echo,
    )
    envelope = Envelope.new(
        generation.request_id, "text_completion", model.name, fields.wants_usage
    )
    echo = _Echo(fields, model.tokenizer)
    return await respond(
        request,
        state,
        generation,
        CompletionFormat(envelope, generation, echo) if fields.stream else None,
        CompletionCollector(envelope, generation, echo, model.tokenizer),
        arrival_ns=arrival_ns,
        headers=headers,
    )


async def _read_prompts(
    fields: CompletionRequest, model: ServedModel, state: ServerState
) -> list[Prompt]:
    prompts = list_prompts(fields.prompt)
    check_num_tokens(longest_prompt(prompts, model.max_token_chars), model, fields.prompt_field)

    def read() -> list[Prompt]:
        return read_prompts(
            prompts,
            model.tokenizer,
            vocab_size=model.engine.info.vocab_size,
            add_special_tokens=fields.add_special_tokens,
        )

    size = prompts_size(prompts)
    return read() if size <= INLINE_SIZE else await state.in_text_pool(read, size)


class _Echo:
    """What a request asks for beside the generated text."""

    def __init__(self, fields: CompletionRequest, tokenizer: Tokenizer) -> None:
        self.is_on = fields.echo
        self.num_logprobs = fields.num_logprobs
        self.wants_prompt_logprobs = fields.prompt_logprobs is not None
        self.skip_special_tokens = fields.skip_special_tokens
        self.tokenizer = tokenizer

    def text(self, prompt: Prompt) -> str:
        if not self.is_on:
            return ""
        if prompt.text is not None:
            return prompt.text
        return self.tokenizer.decode(prompt.token_ids, skip_special_tokens=self.skip_special_tokens)

    def logprobs(self, choice: Choice) -> CompletionLogprobs | None:
        """A list for a choice's logprobs, with those of the prompt if it is echoed."""
        if self.num_logprobs is None:
            return None
        result = CompletionLogprobs(self.tokenizer, self.num_logprobs)
        if self.is_on:
            result.add_prompt(choice.run.prompt, choice.run.logprobs, self.skip_special_tokens)
        return result


class CompletionFormat:
    """Chunks of a streamed completion."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, envelope: Envelope, generation: Generation, echo: _Echo) -> None:
        self._envelope = envelope
        self._generation = generation
        self._echo = echo
        self._prefixes = [
            envelope.head + b'{"index":%d,"text":' % choice.index for choice in generation.choices
        ]
        self._plain_end = event_end(None, None, None, envelope.tail)
        self._echo_chars: dict[int, int] = {}
        """Characters of the echoed prompt, of each choice that has begun."""

    def event(self, event: TokenEvent) -> bytes:
        choice = event.choice
        index = choice.index
        echoed = b""
        if self._echo.is_on and index not in self._echo_chars:
            echoed = self._echo_event(choice)
        text = _encode(event.delta)
        if event.logprob is None and event.finish_reason is None:
            return echoed + self._prefixes[index] + text + self._plain_end
        logprobs = self._logprobs(event)
        end = event_end(logprobs, event.finish_reason, choice.stop_reason, self._envelope.tail)
        return echoed + self._prefixes[index] + text + end

    def _logprobs(self, event: TokenEvent) -> dict[str, Any] | None:
        if self._echo.num_logprobs is None or event.token_id is None:
            return None
        one = CompletionLogprobs(self._echo.tokenizer, self._echo.num_logprobs)
        num_chars = self._echo_chars.get(event.choice.index, 0)
        one.add(event.token_id, event.logprob, num_chars + event.text_offset)
        return one.as_dict()

    def _echo_event(self, choice: Choice) -> bytes:
        text = self._echo.text(choice.run.prompt)
        self._echo_chars[choice.index] = len(text)
        logprobs = self._echo.logprobs(choice)
        end = event_end(
            None if logprobs is None else logprobs.as_dict(), None, None, self._envelope.tail
        )
        return self._prefixes[choice.index] + _encode(text) + end

    def end(self) -> bytes:
        return self._envelope.usage_event(self._generation.usage()) + DONE

    def error(self, body: bytes) -> bytes:
        return b"data: " + body + b"\n\n" + DONE


class CompletionCollector:
    """A completion that is answered as a whole."""

    def __init__(
        self, envelope: Envelope, generation: Generation, echo: _Echo, tokenizer: Tokenizer
    ) -> None:
        self._envelope = envelope
        self._generation = generation
        self._echo = echo
        self._tokenizer = tokenizer
        self._events: list[list[TokenEvent]] = [[] for _ in generation.choices]

    def add(self, event: TokenEvent) -> None:
        self._events[event.choice.index].append(event)

    def result(self) -> dict[str, Any]:
        choices = [self._choice(choice) for choice in self._generation.choices]
        return self._envelope.whole(choices, self._generation.usage())

    def _choice(self, choice: Choice) -> dict[str, Any]:
        events = self._events[choice.index]
        prompt_text = self._echo.text(choice.run.prompt)
        text = prompt_text + "".join([event.delta for event in events])
        logprobs = self._echo.logprobs(choice)
        if logprobs is not None:
            for event in events:
                if event.token_id is not None:
                    offset = len(prompt_text) + event.text_offset
                    logprobs.add(event.token_id, event.logprob, offset)
        result: dict[str, Any] = {
            "index": choice.index,
            "text": text,
            "logprobs": None if logprobs is None else logprobs.as_dict(len(text)),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._echo.wants_prompt_logprobs:
            result["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choice.run.logprobs)
        return result
