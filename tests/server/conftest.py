from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import httpx
import openai
import pytest
from server_fakes import MODEL, FakeEngine, FakeServer


@pytest.fixture(scope="module")
def module_server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def server(module_server: FakeServer) -> FakeServer:
    """A running server with an engine of the test's own."""
    module_server.engine = FakeEngine()
    assert module_server.state.model is not None
    module_server.state.model = dataclasses.replace(
        module_server.state.model, engine=module_server.engine
    )
    return module_server


@pytest.fixture
def engine(server: FakeServer) -> FakeEngine:
    return server.engine


@pytest.fixture(scope="module")
def module_http(module_server: FakeServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=module_server.url, timeout=200) as client:
        yield client


@pytest.fixture
def http(server: FakeServer, module_http: httpx.Client) -> httpx.Client:
    return module_http


@pytest.fixture
def client(server: FakeServer, module_http: httpx.Client) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=module_http
    )


@pytest.fixture
def model() -> str:
    return MODEL
