"""Sends the requests: as streams that follow one another, or at given times."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from takt.bench.http_client import HttpClient
from takt.bench.http_connection import ConnectionLostError, ResponseParseError
from takt.bench.record import RequestRecord
from takt.bench.stream_reader import StreamReader
from takt.engine.time_slice import DEFAULT_SLICE, SHORT_SLICE_NS, set_time_slice


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """`payload` is the whole HTTP request, made before the clock runs."""

    payload: bytes
    record: RequestRecord
    arrival_s: float | None


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What came of a load."""

    records: list[RequestRecord]
    """Of the requests that were sent, in their order."""
    duration_s: float
    """First request planned to last answer ended."""
    client_cpu_s: float
    """Processor time of this process meanwhile."""
    was_interrupted: bool


OnEnd = Callable[[RequestRecord], None]


class Load:
    """One run against one server.

    On the server's own machine it takes CPUs that the server uses: as a client elsewhere would not,
    it does not wait for the end of an engine's time slice.
    """

    def __init__(self, client: HttpClient, timeout_s: float, on_end: OnEnd) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._on_end = on_end

    async def closed_loop(self, requests: Sequence[PreparedRequest], concurrency: int) -> LoadRun:
        """`concurrency` streams; each sends the next request when its last has ended."""
        waiting = iter(requests)

        async def stream() -> None:
            for request in waiting:
                request.record.planned_ns = time.monotonic_ns()
                await self._send(request)

        return await self._measure(
            requests, [stream() for _ in range(min(concurrency, len(requests)))]
        )

    async def open_loop(self, requests: Sequence[PreparedRequest]) -> LoadRun:
        """Each request at its time, whatever became of those before."""
        start_ns = time.monotonic_ns()

        async def at_its_time(request: PreparedRequest) -> None:
            record = request.record
            record.planned_ns = start_ns + int((request.arrival_s or 0.0) * 1e9)
            delay_s = (record.planned_ns - time.monotonic_ns()) / 1e9
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await self._send(request)

        return await self._measure(requests, [at_its_time(request) for request in requests])

    async def _measure(
        self, requests: Sequence[PreparedRequest], work: Sequence[Coroutine[Any, Any, None]]
    ) -> LoadRun:
        tasks = [asyncio.create_task(one) for one in work]
        was_interrupted = False
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection would show as a gap of every stream
        set_time_slice(SHORT_SLICE_NS)
        cpu_before_s = _cpu_s()
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            was_interrupted = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            set_time_slice(DEFAULT_SLICE)
            gc.enable()
            gc.unfreeze()
        cpu_s = _cpu_s() - cpu_before_s
        records = [request.record for request in requests if request.record.sent_ns]
        duration_s = 0.0
        if records:
            first_ns = min(record.planned_ns for record in records)
            duration_s = (max(record.end_ns for record in records) - first_ns) / 1e9
        return LoadRun(records, duration_s, cpu_s, was_interrupted)

    async def _send(self, request: PreparedRequest) -> None:
        record = request.record
        reader = StreamReader(record)
        record.sent_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.send(request.payload, reader)
            reader.finish()
        except TimeoutError:
            _fail(record, "timeout", f"no end within {self._timeout_s:g} s")
        except ConnectionLostError as error:
            _fail(record, "reset", str(error))
        except ResponseParseError as error:
            _fail(record, "malformed_http", str(error))
        except OSError as error:
            _fail(record, "connect", os.strerror(error.errno) if error.errno else str(error))
        except asyncio.CancelledError:
            _fail(record, "interrupted", "the run was interrupted")
            raise
        finally:
            record.end_ns = time.monotonic_ns()
            self._on_end(record)


def _fail(record: RequestRecord, kind: str, detail: str) -> None:
    if record.error is None:
        record.error, record.error_detail = kind, detail


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
