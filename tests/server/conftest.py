from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from server_fakes import MODEL, FakeEngine, FakeServer


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[FakeServer]:
    with FakeServer(engine) as running:
        yield running


@pytest.fixture
def http(server: FakeServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


@pytest.fixture
def client(server: FakeServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model() -> str:
    return MODEL
