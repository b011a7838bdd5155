"""An upstream for the gateway's benchmarks: fails as asked, counts what it executes.

    python -m benchmarks.gateway.upstream --port N [--faults] [--deduplicate] [--delay-ms N]

`GET /executions` gives the number of executions of each key, `GET /execution_times` when each of
them began (seconds of the monotonic clock); `GET /health` is 200. Each execution gives another
text, so that two executions of a key cannot look like one. A request for a stream with `events` and
`gap_ms` gets that many events, each with the time it was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass

import uvloop
from aiohttp import web

SEED = 11

FAULTS = {
    "error": 0.04,
    "refusal": 0.03,
    "reset_before": 0.03,
    "reset_after": 0.01,
    "hang": 0.01,
    "slow_body": 0.03,
    "broken_stream": 0.01,
}


@dataclass
class Result:
    content_type: str
    pieces: list[bytes]


class Upstream:
    def __init__(self, *, faults: bool, deduplicates: bool, delay_ms: float) -> None:
        self._rng = random.Random(SEED)
        self._faults = faults
        self._deduplicates = deduplicates
        self._delay_seconds = delay_ms / 1000
        self._begin_times: defaultdict[str, list[float]] = defaultdict(list)
        """Of each key's executions."""
        self._results: dict[str, asyncio.Future[Result]] = {}

    async def executions(self, request: web.Request) -> web.Response:
        return web.json_response({key: len(times) for key, times in self._begin_times.items()})

    async def execution_times(self, request: web.Request) -> web.Response:
        return web.json_response(self._begin_times)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault = self._fault()
        if fault == "error":
            return web.json_response({"error": {"message": "broken"}}, status=500)
        if fault == "refusal":
            return web.json_response({"error": {}}, status=503, headers={"Retry-After": "0.1"})
        if fault == "reset_before":
            return _reset(request)
        if fault == "hang":
            await asyncio.sleep(5)
            return _reset(request)
        if "gap_ms" in body:
            return await self._timed_stream(request, body)
        result = await self._result(request.headers.get("Idempotency-Key", ""), body)
        if fault == "reset_after":
            return _reset(request)
        return await self._write(request, result, fault)

    def _fault(self) -> str | None:
        if not self._faults:
            return None
        draw = self._rng.random()
        for name, share in FAULTS.items():
            draw -= share
            if draw < 0:
                return name
        return None

    async def _result(self, key: str, body: dict[str, object]) -> Result:
        if not self._deduplicates:
            return await self._execute(key, body)
        if key not in self._results:
            self._results[key] = asyncio.ensure_future(self._execute(key, body))
        # The execution outlives a caller that goes away: the next one gets its result.
        return await asyncio.shield(self._results[key])

    async def _execute(self, key: str, body: dict[str, object]) -> Result:
        begin = time.monotonic()
        await asyncio.sleep(self._delay_seconds)
        self._begin_times[key].append(begin)
        text = f"{key} {self._rng.getrandbits(64):x}"
        if not body.get("stream"):
            return Result("application/json", [json.dumps({"text": text}).encode()])
        events = [
            b"data: " + json.dumps({"text": text, "i": i}).encode() + b"\n\n" for i in range(4)
        ]
        return Result("text/event-stream", [*events, b"data: [DONE]\n\n"])

    async def _write(
        self, request: web.Request, result: Result, fault: str | None
    ) -> web.StreamResponse:
        if len(result.pieces) == 1 and fault != "slow_body":
            return web.Response(body=result.pieces[0], content_type=result.content_type)
        response = web.StreamResponse(headers={"Content-Type": result.content_type})
        await response.prepare(request)
        for number, piece in enumerate(result.pieces):
            if fault == "broken_stream" and number == 2:
                return _reset(request)
            await asyncio.sleep(0.2 if fault == "slow_body" else 0.002)
            await response.write(piece)
        await response.write_eof()
        return response

    async def _timed_stream(
        self, request: web.Request, body: dict[str, float]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        gap = body["gap_ms"] / 1000
        await asyncio.sleep(self._rng.uniform(0, gap))
        for _ in range(int(body["events"])):
            await response.write(b"data: %d\n\n" % time.monotonic_ns())
            await asyncio.sleep(gap)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--deduplicate", action="store_true")
    parser.add_argument("--delay-ms", type=float, default=10.0)
    options = parser.parse_args()
    upstream = Upstream(
        faults=options.faults, deduplicates=options.deduplicate, delay_ms=options.delay_ms
    )
    app = web.Application()
    app.router.add_get("/executions", upstream.executions)
    app.router.add_get("/execution_times", upstream.execution_times)
    app.router.add_get("/health", upstream.health)
    app.router.add_post("/{path:.*}", upstream.handle)
    web.run_app(
        app,
        host="127.0.0.1",
        port=options.port,
        access_log=None,
        print=None,
        handler_cancellation=True,
        keepalive_timeout=75,
        loop=uvloop.new_event_loop(),
        backlog=1024,
    )


if __name__ == "__main__":
    main()
