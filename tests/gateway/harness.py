"""A gateway on the test's own event loop, before scripted upstreams."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl
from multidict import CIMultiDict
from scripted_upstream import ScriptedUpstream

from takt.gateway.app import GatewayApplication
from takt.gateway.build import build_parts, close_parts
from takt.gateway.gateway import Gateway
from takt.gateway.handler import Handler
from takt.gateway.health import HealthChecker
from takt.gateway.http.server import HttpServer
from takt.gateway.options import GatewayOptions
from takt.gateway.parts import Parts
from takt.gateway.policy import build_policy

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
FAST = {"base_ms": 1, "cap_ms": 5}


@dataclass
class Answered:
    status: int
    body: bytes
    headers: CIMultiDict[str]

    @property
    def is_replay(self) -> bool:
        return self.headers.get("Idempotency-Replayed") == "true"


def code_of(answered: Answered) -> str:
    return str(json.loads(answered.body)["error"]["code"])


class Harness:
    """`retry` and `policy` are tables of the policy file; the rest are options."""

    def __init__(
        self,
        upstreams: list[ScriptedUpstream],
        store_url: str,
        *,
        retry: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        deduplicates: bool = False,
        **options: Any,
    ) -> None:
        self.upstreams = upstreams
        self._retry = retry or {}
        self._policy = policy or {}
        self._deduplicates = deduplicates
        # A lease that outlasts any pause of the machine, but where a test waits for its end.
        self._options = {"store": store_url, "lease_ms": 30_000, "health_interval_ms": 50} | options
        self.url = ""

    async def __aenter__(self) -> Harness:
        options = GatewayOptions(upstream=tuple(one.url for one in self.upstreams), **self._options)
        table = {
            "retry": FAST | self._retry,
            "upstreams": [
                {"url": one.url, "deduplicates": self._deduplicates} for one in self.upstreams
            ],
        }
        parts = await build_parts(options, build_policy(table | self._policy, (), "policy"))
        await self._start(parts)
        return self

    async def _start(self, parts: Parts) -> None:
        self.parts = parts
        self.gateway = Gateway(parts)
        self.handler = Handler(self.gateway)
        self._checker = HealthChecker(parts.router, parts.client, parts.options.health_interval_ms)
        await self._checker.check_all()
        self._background = [
            asyncio.create_task(parts.keeper.run()),
            asyncio.create_task(self._checker.run()),
        ]
        self.server = HttpServer(GatewayApplication(parts, self.handler))
        bound = socket.create_server(("127.0.0.1", 0))
        await self.server.start(bound)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self.session = aiohttp.ClientSession()

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.gateway.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.server.close(0.1)
        await close_parts(self.parts)

    async def die(self) -> None:
        """As SIGKILL would end it: nothing is released, nothing more is written."""
        self.gateway._is_stopping = True
        for task in (*self._background, *self.gateway._tasks):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def post(
        self,
        key: str | None = "k",
        body: Any = None,
        *,
        path: str = PATH,
        headers: dict[str, str] | None = None,
        method: str = "POST",
        data: bytes | None = None,
    ) -> Answered:
        sent = dict(headers or {})
        if key is not None:
            sent["Idempotency-Key"] = key
        async with self.session.request(
            method,
            yarl.URL(self.url + path, encoded=True),
            json=None if data is not None else (BODY if body is None else body),
            data=data,
            headers=sent,
        ) as response:
            return Answered(response.status, await response.read(), CIMultiDict(response.headers))

    def metric(self, name: str, **labels: str) -> float:
        return self.parts.metrics.registry.get_sample_value(name, labels) or 0.0
