"""One run from options to results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from takt.bench.endpoint import Endpoint
from takt.bench.goodput import Targets
from takt.bench.http_client import HttpClient, ServerError
from takt.bench.load import Load, LoadRun, PreparedRequest
from takt.bench.options import BenchOptions
from takt.bench.prompts import PromptMaker
from takt.bench.record import RequestRecord
from takt.bench.results import Setting, make_setting
from takt.bench.summary import Summary, summarize
from takt.bench.token_counter import TokenCounter
from takt.bench.workload import PlannedRequest, plan_requests

OnProgress = Callable[[str, int, int], None]
"""Stage, what is done, of how much."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    setting: Setting
    summary: Summary
    run: LoadRun


def run_bench(url: str, options: BenchOptions, on_progress: OnProgress) -> BenchResult:
    """Runs to the end, or until it is interrupted; what was measured till then is reported.

    Raises `ConfigError` for options that cannot work and `ServerError` for a server that cannot be
    asked for its model. Failures of measured requests are in the result.
    """
    endpoint = Endpoint.parse(url)
    targets = Targets.parse(options.goodput)
    options = options.with_seed()
    planned = plan_requests(options)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(endpoint, options, targets, planned, on_progress))


async def _run(
    endpoint: Endpoint,
    options: BenchOptions,
    targets: Targets,
    planned: Sequence[PlannedRequest],
    on_progress: OnProgress,
) -> BenchResult:
    client = HttpClient(endpoint, options.api_key or os.environ.get("OPENAI_API_KEY"))
    try:
        model = options.model or await _first_model(client)
        server = await _server_name(client)
        counter = await TokenCounter.find(client, model, is_chat=options.endpoint == "chat")
        maker = await PromptMaker.create(counter, options.seed or 0)
        warmup, measured = await _prepare(client, options, model, maker, planned, on_progress)
        load = Load(client, options.timeout, lambda record: None)
        if warmup:
            await load.closed_loop(warmup, options.concurrency)
        run = await _measure(client, options, measured, on_progress)
    finally:
        client.close()
    summary = summarize(run, targets, has_exact_prompts=maker.is_exact)
    setting = make_setting(options, str(endpoint), model, server, maker.is_exact)
    return BenchResult(setting, summary, run)


async def _measure(
    client: HttpClient,
    options: BenchOptions,
    requests: Sequence[PreparedRequest],
    on_progress: OnProgress,
) -> LoadRun:
    num_ended = 0

    def on_end(record: RequestRecord) -> None:
        nonlocal num_ended
        num_ended += 1
        on_progress("requests", num_ended, len(requests))

    load = Load(client, options.timeout, on_end)
    if options.is_open_loop:
        return await load.open_loop(requests)
    return await load.closed_loop(requests, options.concurrency)


async def _prepare(
    client: HttpClient,
    options: BenchOptions,
    model: str,
    maker: PromptMaker,
    planned: Sequence[PlannedRequest],
    on_progress: OnProgress,
) -> tuple[list[PreparedRequest], list[PreparedRequest]]:
    """Requests of the warm-up and those to measure, encoded."""
    warmup = [
        PlannedRequest(-1 - i, None, options.prompt_tokens, options.output_tokens)
        for i in range(options.num_warmup_requests)
    ]
    wanted = [*warmup, *planned]
    num_made = 0

    def on_prompt() -> None:
        nonlocal num_made
        num_made += 1
        on_progress("prompts", num_made, len(wanted))

    prompts = await maker.make(wanted, on_prompt)
    path = "/v1/chat/completions" if options.endpoint == "chat" else "/v1/completions"
    prepared = [
        PreparedRequest(
            client.encode("POST", path, _body(options, model, request, prompt)),
            RequestRecord(
                request.index,
                request.num_prompt_tokens,
                request.num_output_tokens,
                is_long=request.is_long,
            ),
            request.arrival_s,
        )
        for request, prompt in zip(wanted, prompts, strict=True)
    ]
    return prepared[: len(warmup)], prepared[len(warmup) :]


def _body(
    options: BenchOptions, model: str, request: PlannedRequest, prompt: str
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": request.num_output_tokens,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return body


async def _first_model(client: HttpClient) -> str:
    answer = await client.fetch_json("GET", "/v1/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ServerError("/v1/models names no model: give --model") from None


async def _server_name(client: HttpClient) -> str:
    """What `/v1/models` and `/version` tell, or an empty text."""
    try:
        models = await client.fetch_json("GET", "/v1/models")
        owner = str(models["data"][0].get("owned_by", ""))
        version = await client.fetch_json("GET", "/version")
        return f"{owner} {version['version']}"
    except (ServerError, KeyError, IndexError, TypeError, AttributeError):
        return ""
