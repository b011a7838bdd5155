"""What completions and chat have in common: from a checked request to a response."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from takt.errors import InvalidRequestError
from takt.scheduler.slo import NO_SLO, SLO
from takt.server.body import parse_json_object, read_body
from takt.server.errors import TooLateError, unavailable
from takt.server.fields import UnknownField, read_fields, refuse_unknown
from takt.server.generation import Generation, TokenEvent
from takt.server.prompts import Prompt
from takt.server.protocol import (
    GenerationRequest,
    fit_max_tokens,
    prompt_too_long,
    sampling_params,
)
from takt.server.stamps import RequestStamps
from takt.server.state import Phase, ServedModel, ServerState
from takt.server.stream import EventStream, StreamFormat, abort_on_disconnect

INLINE_LOGPROBS = 200
"""Logprobs of an answer that are written on the event loop; each takes some microseconds."""

INLINE_BODY_BYTES = 32 * 1024
"""A body up to this length is parsed on the event loop, in less time than a thread would cost."""

Headers = list[tuple[bytes, bytes]]
RequestT = TypeVar("RequestT", bound=msgspec.Struct)


class Collector(Protocol):
    """Gathers the events of an answer that is sent as a whole."""

    def add(self, event: TokenEvent) -> None: ...

    def result(self) -> dict[str, Any]: ...


async def read_request(
    request: Request, state: ServerState, request_type: type[RequestT]
) -> tuple[RequestT, Headers]:
    """The checked fields of a request, and the response headers that warn of unknown ones."""
    if state.phase is Phase.DRAINING:
        raise unavailable("the server is stopping")
    body = await read_body(request, state.options.max_request_bytes)

    def read() -> tuple[RequestT, list[UnknownField]]:
        return read_fields(parse_json_object(body), request_type)

    fields, unknown = (
        read() if len(body) <= INLINE_BODY_BYTES else await state.in_text_pool(read, len(body))
    )
    if not state.options.allow_unknown_fields:
        refuse_unknown(unknown)
    return fields, _warnings(unknown)


def prepare(
    fields: GenerationRequest,
    model: ServedModel,
    prompts: Sequence[Prompt],
    *,
    request_id: str,
    wanted_tokens: int | None,
    default_tokens: int,
    logprobs: int | None,
    scores_prompt: bool,
) -> Generation:
    """A generation that fits the model; raises `InvalidRequestError` for one that cannot."""
    _check_choices(fields, len(prompts), model)
    info = model.engine.info
    limits = [
        fit_max_tokens(
            wanted_tokens,
            default_tokens,
            len(prompt.token_ids),
            info.max_model_len,
            prompt_field=fields.prompt_field,
            limit_field=fields.limit_field,
        )
        for prompt in prompts
    ]
    for prompt, limit in zip(prompts, limits, strict=True):
        _check_pool(len(prompt.token_ids), limit, info.num_kv_tokens, fields.limit_field)
    prompt_logprobs = fields.prompt_logprobs
    if scores_prompt and logprobs is not None:
        prompt_logprobs = max(logprobs, prompt_logprobs or 0)
    sampling = sampling_params(
        fields,
        max_tokens=max(limits),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        max_logprobs=model.max_logprobs,
        vocab_size=info.vocab_size,
    )
    return Generation(
        model.engine,
        model.tokenizer,
        prompts,
        sampling,
        max_tokens=limits,
        request_id=request_id,
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        slo=_targets(fields, model),
    )


async def respond(
    request: Request,
    state: ServerState,
    generation: Generation,
    stream_format: StreamFormat | None,
    collector: Collector,
    *,
    arrival_ns: int,
    headers: Headers,
) -> Response | EventStream:
    """Streams in `stream_format`, or without one collects and answers as a whole."""
    stamps = RequestStamps(generation, state.metrics, state.ledger, state.clock, arrival_ns)
    if stream_format is not None:
        return EventStream(
            generation,
            stream_format,
            stamps,
            max_lag_tokens=state.options.stream_buffer_tokens,
            headers=headers,
        )
    await _collect(request, generation, stamps, collector.add)
    if generation.num_logprobs > INLINE_LOGPROBS:
        return await state.in_text_pool(
            lambda: json_response(collector.result(), headers), generation.num_logprobs
        )
    return json_response(collector.result(), headers)


def json_response(content: Any, headers: Headers | None = None) -> Response:
    response = Response(msgspec.json.encode(content), media_type="application/json")
    response.raw_headers.extend(headers or [])
    return response


def check_length(num_chars: int, model: ServedModel, field: str) -> None:
    """Refuses a text that cannot fit however it is tokenised, before the work is done."""
    check_num_tokens(num_chars // model.max_token_chars, model, field)


def check_num_tokens(num_tokens: int, model: ServedModel, field: str) -> None:
    """Refuses a prompt that has at least `num_tokens` tokens and so cannot fit."""
    max_model_len = model.engine.info.max_model_len
    if num_tokens > max_model_len:
        raise prompt_too_long(f"at least {num_tokens}", max_model_len, field)


def check_num_messages(num_messages: int, model: ServedModel) -> None:
    max_model_len = model.engine.info.max_model_len
    if num_messages > max_model_len:
        raise InvalidRequestError(
            f"{num_messages} messages, and the context of this model holds {max_model_len} tokens: "
            "send fewer messages",
            param="messages",
            code="context_length_exceeded",
        )


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def _collect(
    request: Request,
    generation: Generation,
    stamps: RequestStamps,
    add: Callable[[TokenEvent], None],
) -> None:
    try:
        async with (
            abort_on_disconnect(request.receive, generation),
            aclosing(generation.outputs()) as outputs,
        ):
            async for output in outputs:
                for event in generation.read(output):
                    add(event)
                    stamps.written(event)
            generation.check_complete()
    except TooLateError:
        stamps.abandoned()
        raise
    except Exception:
        if generation.num_generated_tokens:
            stamps.failed()
        raise
    stamps.finished()


def _check_choices(fields: GenerationRequest, num_prompts: int, model: ServedModel) -> None:
    if num_prompts * fields.n > model.max_outstanding:
        raise InvalidRequestError(
            f"the request asks for {num_prompts * fields.n} sequences ({num_prompts} prompts, n "
            f"{fields.n}), and this server takes {model.max_outstanding} at a time "
            "(--max-num-seqs and --max-num-waiting): send several requests",
            param="n" if fields.n > 1 else fields.prompt_field,
        )
    if fields.priority and not model.has_priorities:
        raise InvalidRequestError(
            "priority: this server takes requests in order of arrival; start it with "
            "--scheduling-policy priority, or with a target for pace",
            param="priority",
        )


def _targets(fields: GenerationRequest, model: ServedModel) -> SLO:
    if fields.slo is None:
        return NO_SLO
    slo = fields.slo.as_slo()
    if slo.is_given and not model.keeps_targets:
        raise InvalidRequestError(
            "slo: this server does not plan its steps by time; start it with --slo-itl-p99-ms or "
            "--scheduling-policy pace",
            param="slo",
        )
    return slo


def _check_pool(
    num_prompt_tokens: int, max_tokens: int, num_kv_tokens: int, limit_field: str
) -> None:
    total = num_prompt_tokens + max_tokens
    if total > num_kv_tokens:
        raise InvalidRequestError(
            f"the request may need {total} tokens of KV cache ({num_prompt_tokens} of the prompt, "
            f"{max_tokens} of output), and the pool holds {num_kv_tokens}: lower {limit_field}, "
            "or start the server with a larger --kv-cache-memory-bytes",
            param=limit_field,
            code="context_length_exceeded",
        )


def _warnings(unknown: Sequence[UnknownField]) -> Headers:
    names = ", ".join(field.name[:64] for field in unknown)
    if not names:
        return []
    text = ascii(f"unknown fields were ignored: {names}")[1:-1].replace('"', "'")
    return [(b"warning", f'299 takt "{text}"'.encode())]
