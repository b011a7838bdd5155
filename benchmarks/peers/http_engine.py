"""A server with OpenAI's API, measured over HTTP by the load generator."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence

import uvloop
from benchmarks.cpu.takt_server import process_tree
from benchmarks.peers.engine import EngineError, Timeline

from takt.bench.endpoint import Endpoint
from takt.bench.http_client import HttpClient
from takt.bench.load import Load, LoadRun, PreparedRequest
from takt.bench.record import RequestRecord
from takt.bench.token_times import token_times

TIMEOUT_SECONDS = 600.0


class HttpEngine:
    """Prompts go as token ids. `stop` ends the server, whose process is `pid`."""

    def __init__(self, url: str, model: str, pid: int, stop: Callable[[], None]) -> None:
        self._url = url
        self._model = model
        self._pid = pid
        self._stop = stop

    def run(self, prompts: Sequence[list[int]], streams: int, num_output: int) -> list[Timeline]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            run = runner.run(self._run(prompts, streams, num_output))
        timelines = []
        for record in run.records:
            if record.error is not None:
                raise EngineError(f"{record.error}: {record.error_detail}")
            times = token_times(record)
            if len(times.stamps_ns) != num_output:
                raise EngineError(f"{len(times.stamps_ns)} events came, not {num_output}")
            cached = record.usage.num_cached_tokens if record.usage is not None else None
            timelines.append(Timeline(record.planned_ns, times.stamps_ns, cached or 0))
        return timelines

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self._stop()

    async def _run(self, prompts: Sequence[list[int]], streams: int, num_output: int) -> LoadRun:
        client = HttpClient(Endpoint.parse(self._url))
        try:
            requests = [
                PreparedRequest(
                    client.encode("POST", "/v1/completions", self._body(prompt, num_output)),
                    RequestRecord(index, len(prompt), num_output),
                    None,
                )
                for index, prompt in enumerate(prompts)
            ]
            load = Load(client, TIMEOUT_SECONDS, lambda record: None)
            return await load.closed_loop(requests, streams)
        finally:
            client.close()

    def _body(self, prompt: list[int], num_output: int) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_output,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _signal(self, number: signal.Signals) -> None:
        for pid in process_tree(self._pid):
            os.kill(pid, number)
