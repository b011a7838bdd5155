"""The client's end of running requests: outputs wait here for the coroutine that reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from takt.engine.messages import IN_OUTPUTS, AddRequest, RequestOutput
from takt.errors import EngineDeadError


class WithdrawnError(Exception):
    """The request was taken from its engine, to go on elsewhere."""


class Stream:
    """Outputs of one request, all choices; one reader, woken at most once per step."""

    def __init__(self, request: AddRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request.request_id
        self.num_choices = request.sampling.n
        self._num_open = request.sampling.n
        self._loop = loop
        self._outputs: deque[RequestOutput] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended, read or not."""
        return self._num_open == 0

    @property
    def has_unread(self) -> bool:
        return bool(self._outputs)

    def put(self, output: RequestOutput) -> None:
        self._outputs.append(output)
        if output.finish_reason is not None:
            # A refusal ends the request as a whole.
            self._num_open = 0 if output.finish_reason == "error" else self._num_open - 1
        self._wake()

    def fail(self, failure: Exception) -> None:
        """Ends the stream: the reader gets what came before, then the failure."""
        if not self.is_complete:
            self._failure = failure
            self._wake()

    async def next(self) -> RequestOutput | None:
        """The next output, or None after the last one; raises the failure if there was one."""
        while not self._outputs:
            if self._failure is not None:
                raise self._failure
            if self.is_complete:
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._outputs.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Streams:
    """All requests that an engine still owes an answer."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._members: list[tuple[str, int]] = []
        """Who decodes: a message names them when they have changed."""
        self._num_choices = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    @property
    def num_choices(self) -> int:
        """Sequences that run or wait in the engine."""
        return self._num_choices

    def add(self, stream: Stream) -> None:
        self._streams[stream.request_id] = stream
        self._num_choices += stream.num_choices

    def remove(self, stream: Stream) -> None:
        """Forgets a request; it may be gone already."""
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
            self._num_choices -= stream.num_choices

    def withdraw(self, request_id: str) -> bool:
        """Ends a request whose reader has all that came with a `WithdrawnError`; False if there is
        something left to read, or no such request."""
        stream = self._streams.get(request_id)
        if stream is None or stream.has_unread:
            return False
        self.remove(stream)
        stream.fail(WithdrawnError())
        return True

    def dispatch(self, outputs: list[RequestOutput], step_id: int) -> None:
        """Hands each output to its stream; those of requests that were given up are dropped."""
        for output in outputs:
            output.step_id = step_id
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)
                if stream.is_complete:
                    self.remove(stream)

    def dispatch_tokens(
        self, members: list[tuple[str, int]] | None, token_ids: Sequence[int], step_id: int
    ) -> None:
        """Hands a plain token to each of the members; None: those of the call before."""
        if members is not None:
            self._members = members
        if not token_ids:
            return
        streams = self._streams
        for (request_id, choice), token_id in zip(self._members, token_ids, strict=True):
            stream = streams.get(request_id)
            if stream is not None and token_id != IN_OUTPUTS:
                stream.put(RequestOutput(request_id, choice, [token_id], step_id=step_id))

    def fail_all(self, sentence: str) -> None:
        """Ends every request with an `EngineDeadError` that says `sentence`."""
        streams, self._streams = self._streams, {}
        self._num_choices = 0
        for stream in streams.values():
            stream.fail(EngineDeadError(sentence))
