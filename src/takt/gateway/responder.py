"""Writes an execution's answer to one client, at that client's pace."""

from __future__ import annotations

import asyncio

from aiohttp import web

from takt.clock import Clock
from takt.gateway.errors import Answer, GatewayError, error_answer, error_event, stream_lost
from takt.gateway.execution import Ending, Execution
from takt.gateway.idle_watch import IdleWatch
from takt.gateway.states import Head
from takt.idempotency import REPLAYED_HEADER

NS_PER_SECOND = 1_000_000_000

WRITE_TIMEOUT_SECONDS = 120.0
"""A client that reads nothing for this long is taken for gone."""

GRACE_SECONDS = 0.25
"""A leader with the same deadline has the last word on what went wrong."""


class LostBeforeAnswerError(Exception):
    """The execution was lost and nothing was written: the request may be looked up again."""


async def respond(
    request: web.BaseRequest,
    execution: Execution,
    *,
    is_duplicate: bool,
    deadline_ns: int,
    clock: Clock,
) -> web.StreamResponse:
    """The response, written to its end. Raises `LostBeforeAnswerError` and `GatewayError`."""
    remaining = (deadline_ns - clock.now_ns()) / NS_PER_SECOND
    try:
        async with asyncio.timeout(max(remaining, 0) + GRACE_SECONDS):
            await execution.wait_for_head()
    except TimeoutError:
        raise GatewayError(
            504,
            "still_processing",
            "The request is still being processed; ask again with the same key.",
            retry_after_seconds=1,
        ) from None
    if execution.ending is None:
        return await _write_stream(request, execution, is_duplicate)
    if execution.ending is Ending.LOST:
        raise LostBeforeAnswerError
    if execution.error is not None:
        raise execution.error
    assert execution.head is not None
    return write_answer(Answer(execution.head, b"".join(execution.pieces)), is_duplicate)


def write_answer(answer: Answer, is_duplicate: bool = False) -> web.Response:
    response = web.Response(status=answer.head.status, body=answer.body)
    _set_headers(response, answer.head, is_duplicate)
    return response


def write_error(error: GatewayError) -> web.Response:
    return write_answer(error_answer(error))


async def _write_stream(
    request: web.BaseRequest, execution: Execution, is_duplicate: bool
) -> web.StreamResponse:
    head = execution.head
    assert head is not None
    response = web.StreamResponse(status=head.status)
    _set_headers(response, head, is_duplicate)
    await response.prepare(request)
    watch = IdleWatch(WRITE_TIMEOUT_SECONDS, lambda: _abort(request))
    try:
        await _write_pieces(response, execution, watch)
    finally:
        watch.close()
    return response


async def _write_pieces(
    response: web.StreamResponse, execution: Execution, watch: IdleWatch
) -> None:
    position = 0
    while True:
        while position < len(execution.pieces):
            # Whatever has come meanwhile goes in one write.
            pieces = execution.pieces[position:]
            position += len(pieces)
            watch.begin()
            await response.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            watch.end()
        if execution.ending is not None:
            break
        await execution.wait(position)
    watch.begin()
    if execution.ending is not Ending.COMPLETE:
        await response.write(error_event(execution.error or stream_lost()))
    await response.write_eof()


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def _set_headers(response: web.StreamResponse, head: Head, is_duplicate: bool) -> None:
    for name, value in head.headers:
        response.headers.add(name, value)
    if is_duplicate:
        response.headers[REPLAYED_HEADER] = "true"
