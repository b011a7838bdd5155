"""The routes that generate nothing: models, tokens, health, version, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

import takt
from takt.engine.client import EngineState, ReplicaStatus
from takt.errors import InvalidRequestError
from takt.observe.ledger.ledger import NUM_KEPT
from takt.observe.ledger.report import NUM_WORST, report
from takt.observe.metrics import Metrics
from takt.server.answers import check_num_messages, json_response, read_request
from takt.server.chat_messages import num_message_chars
from takt.server.errors import HttpError, unavailable
from takt.server.protocol import DetokenizeRequest, TokenizeRequest
from takt.server.state import ServedModel, ServerState, check_model_name

MAX_WORST_DIGITS = len(str(NUM_KEPT))

MAX_TOKENIZE_CHARS = 4 * 1024 * 1024
"""Of a text that is only tokenised; it keeps a thread busy for about a second per million."""


async def list_models(request: Request, state: ServerState) -> Response:
    model = _loaded(state)
    return json_response(
        {"object": "list", "data": [_model_card(name, model) for name in model.names]}
    )


async def show_model(request: Request, state: ServerState) -> Response:
    model = _loaded(state)
    name = request.path_params["model"]
    check_model_name(name, model)
    return json_response(_model_card(name, model))


async def tokenize(request: Request, state: ServerState) -> Response:
    """vLLM's: token ids of a prompt, or of a chat as its template renders it."""
    fields, headers = await read_request(request, state, TokenizeRequest)
    model = state.ready_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequestError("give either prompt or messages", param="prompt")
    num_chars = len(fields.prompt or "")
    if fields.messages is not None:
        check_num_messages(len(fields.messages), model)
        num_chars = num_message_chars(fields.messages)
    if num_chars > MAX_TOKENIZE_CHARS:
        raise InvalidRequestError(
            f"the text has {num_chars} characters, more than {MAX_TOKENIZE_CHARS}: send it in "
            "parts",
            param="prompt" if fields.messages is None else "messages",
        )

    def answer() -> Response:
        token_ids = _tokenize(fields, model)
        strings = None
        if fields.return_token_strs:
            strings = [model.tokenizer.token_text(i) for i in token_ids]
        return json_response(
            {
                "count": len(token_ids),
                "max_model_len": model.engine.info.max_model_len,
                "tokens": token_ids,
                "token_strs": strings,
            },
            headers,
        )

    return await state.in_text_pool(answer, num_chars)


async def detokenize(request: Request, state: ServerState) -> Response:
    fields, headers = await read_request(request, state, DetokenizeRequest)
    model = state.ready_model(fields.model)
    vocab_size = model.engine.info.vocab_size

    def answer() -> Response:
        for token_id in fields.tokens:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"tokens: id {token_id} is not between 0 and {vocab_size - 1}", param="tokens"
                )
        text = model.tokenizer.decode(fields.tokens, skip_special_tokens=False)
        return json_response({"prompt": text}, headers)

    return await state.in_text_pool(answer, len(fields.tokens))


async def health(request: Request, state: ServerState) -> Response:
    """200 when requests would be served now, else 503."""
    if not state.is_ready:
        raise unavailable(_reason(state))
    return Response(status_code=200)


async def show_engine(request: Request, state: ServerState) -> Response:
    """What runs: the model, the sizes of the engine, its precision policy, and its replicas."""
    model = _loaded(state)
    engine = model.engine.info
    return json_response(
        {
            "version": takt.__version__,
            "model": model.name,
            "state": model.engine.state.value,
            "precision": engine.precision,
            "max_model_len": engine.max_model_len,
            "vocab_size": engine.vocab_size,
            "num_kv_tokens": engine.num_kv_tokens,
            "kv_cache_bytes": engine.kv_cache_bytes,
            "num_threads": engine.num_threads,
            "pipeline": None if engine.pipeline is None else to_builtins(engine.pipeline),
            "load_seconds": round(engine.load_seconds, 3),
            "replicas": [_replica(status) for status in model.engine.replicas],
        }
    )


async def version(request: Request, state: ServerState) -> Response:
    return json_response({"version": takt.__version__})


async def metrics(request: Request, state: ServerState) -> Response:
    # Aborts are followed by no step that would count again.
    if not state.is_ready or not state.num_in_flight:
        state.metrics.set_idle()
    state.metrics.settle()
    if state.model is not None:
        _show_replicas(state.metrics, state.model.engine.replicas)
    state.ledger.settle()
    return Response(
        generate_latest(state.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


async def slo(request: Request, state: ServerState) -> Response:
    """The ledger: how well the targets are held, and why what was late was late.

    `?worst=N` gives the N worst gaps and first tokens of those that are held.
    """
    worst = request.query_params.get("worst", str(NUM_WORST))
    # Python reads no number of thousands of digits.
    if not (worst.isdecimal() and len(worst) <= MAX_WORST_DIGITS and int(worst) <= NUM_KEPT):
        raise InvalidRequestError(
            f"worst must be a number from 0 to {NUM_KEPT}, got {worst[:32]!r}", param="worst"
        )
    return json_response(report(state.ledger, state.clock.now_ns(), int(worst)))


def _replica(status: ReplicaStatus) -> dict[str, Any]:
    return {
        "replica": status.number,
        "state": status.state.value,
        "num_restarts": status.num_restarts,
        "num_outstanding": status.num_outstanding,
        "num_offloaded": status.num_offloaded,
        "pid": status.pid,
        "num_kv_tokens": None if status.info is None else status.info.num_kv_tokens,
    }


def _show_replicas(metrics: Metrics, replicas: Sequence[ReplicaStatus]) -> None:
    """What each engine says of itself, and that one which is gone holds nothing."""
    for status, engine in zip(replicas, metrics.engines, strict=True):
        engine.set_totals(num_restarts=status.num_restarts, num_offloaded=status.num_offloaded)
        if status.info is not None:
            info = status.info
            engine.set_info(info.precision)
            engine.set_cache(
                info.kv_cache_dtype, info.kv_block_size, info.kv_num_blocks, info.kv_block_bytes
            )
        if status.state is not EngineState.READY:
            engine.set_idle()


def _tokenize(fields: TokenizeRequest, model: ServedModel) -> list[int]:
    if fields.messages is not None:
        if fields.add_special_tokens:
            raise InvalidRequestError(
                "add_special_tokens: the chat template decides it", param="add_special_tokens"
            )
        return model.chat.encode(
            fields.messages,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            template_kwargs=fields.chat_template_kwargs,
        )
    assert fields.prompt is not None
    return model.tokenizer.encode(
        fields.prompt, parse_special=True, add_bos=fields.add_special_tokens is not False
    )


def _loaded(state: ServerState) -> ServedModel:
    if state.model is None:
        raise unavailable(_reason(state), retry_after_seconds=5)
    return state.model


def _reason(state: ServerState) -> str:
    if state.model is None:
        return "the model is loading"
    if state.phase.value != "serving":
        return f"the server is {state.phase.value}"
    return f"the engine is {state.model.engine.state.value}"


def _model_card(name: str, model: ServedModel) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "takt",
        "root": model.name,
        "parent": None,
        "max_model_len": model.engine.info.max_model_len,
    }


def not_found(path: str) -> HttpError:
    return HttpError(404, f"there is no route {path[:128]!r}", code="not_found")
