"""Targets of a request, and the answer to one that is not let in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_fakes import FakeServer

from takt.errors import OverloadedError


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def complete(server: FakeServer, **fields: Any) -> httpx.Response:
    body = {"prompt": "abc", "max_tokens": 2, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body)


@pytest.mark.parametrize("stream", [False, True])
def test_targets_reach_the_engine_in_nanoseconds(server: FakeServer, stream: bool) -> None:
    answer = complete(server, slo={"itl_ms": 12.5, "ttft_ms": 300}, stream=stream)
    assert answer.status_code == 200
    request = server.engine.requests[-1]
    assert (request.slo_itl_ns, request.slo_ttft_ns) == (12_500_000, 300_000_000)


def test_a_request_without_targets_leaves_them_to_the_server(server: FakeServer) -> None:
    assert complete(server, slo=None).status_code == 200
    assert complete(server, slo={"itl_ms": 10}).status_code == 200
    first, second = server.engine.requests
    assert (first.slo_itl_ns, first.slo_ttft_ns) == (None, None)
    assert (second.slo_itl_ns, second.slo_ttft_ns) == (10_000_000, None)


@pytest.mark.parametrize("field", ["itl_ms", "ttft_ms"])
@pytest.mark.parametrize("value", [0, -1, -0.5, 1e300])
def test_a_target_that_is_no_time_is_an_error_of_its_field(
    server: FakeServer, field: str, value: float
) -> None:
    answer = complete(server, slo={field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"slo.{field}"
    assert not server.engine.requests


@pytest.mark.parametrize(
    "slo",
    ["NaN", '{"itl_ms": NaN}', '{"itl_ms": "fast"}', '{"itl": 3}', "[1]", '{"itl_ms": 1e999}'],
)
def test_what_is_no_target_is_an_error(server: FakeServer, slo: str) -> None:
    answer = httpx.post(
        f"{server.url}/v1/completions", content=f'{{"prompt": "abc", "slo": {slo}}}'
    )
    assert answer.status_code == 400
    assert not server.engine.requests


def test_a_server_that_keeps_no_targets_says_so(server: FakeServer) -> None:
    assert server.state.model is not None
    server.state.model = dataclasses.replace(server.state.model, keeps_targets=False)
    answer = complete(server, slo={"itl_ms": 10})
    assert answer.status_code == 400
    assert "--slo-itl-p99-ms" in answer.json()["error"]["message"]
    assert complete(server, slo={}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_of_several_prompts_none_is_sent_if_they_are_not_let_in_together(stream: bool) -> None:
    with FakeServer() as server, httpx.Client(base_url=server.url, timeout=200) as http:
        server.engine.refusal = OverloadedError("busy", retry_after_seconds=7)
        body = {"prompt": ["a", "b"], "stream": stream}
        answer = http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
        assert server.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_429_with_reason_prediction_and_what_would_do(
    server: FakeServer, stream: bool
) -> None:
    details = {"reason": "prefill_backlog", "predicted": {"ttft_ms": 900, "itl_ms": 9.5}}
    server.engine.refusal = OverloadedError(
        "full", retry_after_seconds=3, code="prefill_backlog", details=details
    )
    answer = complete(server, stream=stream)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "prefill_backlog")
    assert error["details"] == details
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'takt_requests_refused_total{engine="0",model_name="fake-model"' in metrics
    assert 'reason="prefill_backlog"} 1.0' in metrics
