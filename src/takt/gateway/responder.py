"""Writes an execution's answer to one client, at that client's pace."""

from __future__ import annotations

import asyncio

from takt.clock import Clock
from takt.gateway.errors import Answer, GatewayError, error_answer, error_event, stream_lost
from takt.gateway.execution import Ending, Execution
from takt.gateway.http.exchange import Exchange
from takt.gateway.http.fields import Fields
from takt.gateway.states import Head
from takt.idempotency import REPLAYED_HEADER

NS_PER_SECOND = 1_000_000_000

GRACE_SECONDS = 0.25
"""A leader with the same deadline has the last word on what went wrong."""


class LostBeforeAnswerError(Exception):
    """The execution was lost and nothing was written: the request may be looked up again."""


async def respond(
    exchange: Exchange,
    execution: Execution,
    *,
    is_duplicate: bool,
    deadline_ns: int,
    clock: Clock,
) -> int:
    """The status of the answer, which is written to its end. Raises `LostBeforeAnswerError` and
    `GatewayError`, and has then written nothing."""
    reply = _Reply(exchange, execution, is_duplicate)
    execution.subscribe(reply.advance)
    exchange.on_drained = reply.advance
    remaining = max(deadline_ns - clock.now_ns(), 0) / NS_PER_SECOND
    timer = asyncio.get_running_loop().call_later(remaining + GRACE_SECONDS, reply.give_up)
    try:
        reply.advance()
        await reply.done
    finally:
        timer.cancel()
        exchange.on_drained = None
        execution.unsubscribe(reply.advance)
    if exchange.is_answered:
        assert execution.head is not None, "an answer has a head"
        return execution.head.status
    if execution.ending is Ending.LOST:
        raise LostBeforeAnswerError
    if execution.error is not None:
        raise execution.error
    raise GatewayError(
        504,
        "still_processing",
        "The request is still being processed; ask again with the same key.",
        retry_after_seconds=1,
    )


class _Reply:
    """Whatever of an answer is there is written as soon as the client can take it."""

    def __init__(self, exchange: Exchange, execution: Execution, is_duplicate: bool) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The answer is written, or there will be none."""
        self._exchange = exchange
        self._execution = execution
        self._is_duplicate = is_duplicate
        self._position = 0

    def advance(self) -> None:
        """Raises nothing: whoever writes the execution has other readers too."""
        if self.done.done():
            return
        try:
            self._advance()
        except Exception as error:
            self.done.set_exception(error)

    def _advance(self) -> None:
        exchange, execution = self._exchange, self._execution
        if exchange.is_held_up:
            return
        if not exchange.is_begun:
            if execution.ending is not None:
                self._write_whole()
                return
            if not execution.pieces:
                return
            assert execution.head is not None, "a stream begins with its head"
            exchange.begin(execution.head.status, _fields(execution.head, self._is_duplicate))
        self._write_pieces()
        if execution.ending is not None and self._position == len(execution.pieces):
            if execution.ending is not Ending.COMPLETE:
                error = execution.error or stream_lost()
                exchange.write(error_event(error, after=execution.tail))
            exchange.end()
            self.done.set_result(None)

    def give_up(self) -> None:
        """Nothing came in time. A stream that has begun goes on."""
        if not (self._exchange.is_begun or self.done.done()):
            self.done.set_result(None)

    def _write_whole(self) -> None:
        execution = self._execution
        if execution.ending is Ending.COMPLETE:
            assert execution.head is not None, "a complete answer has a head"
            pieces = execution.pieces
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            fields = _fields(execution.head, self._is_duplicate)
            self._exchange.send(execution.head.status, fields, body)
        self.done.set_result(None)

    def _write_pieces(self) -> None:
        """What has come meanwhile goes in one write."""
        pieces = self._execution.pieces
        num_new = len(pieces) - self._position
        if num_new:
            data = pieces[-1] if num_new == 1 else b"".join(pieces[self._position :])
            self._position = len(pieces)
            self._exchange.write(data)


def write_answer(exchange: Exchange, answer: Answer) -> None:
    exchange.send(answer.head.status, answer.head.headers, answer.body)


def write_error(exchange: Exchange, error: GatewayError) -> None:
    write_answer(exchange, error_answer(error))


def _fields(head: Head, is_duplicate: bool) -> Fields:
    if not is_duplicate:
        return head.headers
    replayed = REPLAYED_HEADER.lower()
    others = [pair for pair in head.headers if pair[0].lower() != replayed]
    return [*others, (REPLAYED_HEADER, "true")]
