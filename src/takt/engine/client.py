"""What a server needs of an engine: requests in, outputs out, and its state."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from takt.engine.messages import AddRequest, EngineReady, RequestOutput


class EngineState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    DEAD = "dead"


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One of the engines behind a client."""

    number: int
    state: EngineState
    num_restarts: int
    """Processes started in place of a dead one."""
    num_outstanding: int
    """Sequences that it still owes tokens."""
    num_offloaded: int
    """Requests that it gave to others for want of memory."""
    pid: int | None
    """Of its process, while there is one."""
    info: EngineReady | None
    """Sizes of the running engine, or of the last one that ran."""


class EngineClient(Protocol):
    """An engine seen from an asyncio server.

    `generate` yields every `RequestOutput` of the request, all choices interleaved, and ends when
    each choice has a finish_reason. It raises `InvalidRequestError` before the first output if the
    request can never be served (`max_model_len`, the pool), and `EngineDeadError` when the engine
    is not ready or dies meanwhile. Closing the iterator aborts what still runs.
    """

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> EngineReady:
        """Sizes of the running engine; raises `EngineDeadError` before it was ever ready."""
        ...

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """One for each engine, by number; without data parallelism there is one."""
        ...

    def check(self, requests: Sequence[AddRequest]) -> None:
        """Raises what `generate` would before it sends one of them, were all sent together."""
        ...

    def generate(self, request: AddRequest) -> AsyncIterator[RequestOutput]: ...

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Ends a request (or one choice); its iterator then yields finish_reason "abort"."""
        ...
