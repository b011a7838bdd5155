"""What the routes share: the phase of the server and the model that it serves."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from takt.clock import Clock, MonotonicClock
from takt.config import ServerOptions
from takt.engine.client import EngineClient, EngineState
from takt.engine.time_slice import DEFAULT_SLICE, set_time_slice
from takt.loading.base import Tokenizer
from takt.observe.ledger.ledger import SLO, Ledger
from takt.observe.metrics import Metrics
from takt.server.chat import ChatRenderer
from takt.server.errors import HttpError, unavailable
from takt.server.idempotency_table import IdempotencyTable

logger = logging.getLogger("takt.server")

ResultT = TypeVar("ResultT")

BULK_SIZE = 256 * 1024
"""Characters, bytes or ids from which on work is done among its like."""


class Phase(enum.Enum):
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]
    """Names clients may use; the first is reported."""
    engine: EngineClient
    tokenizer: Tokenizer
    chat: ChatRenderer
    created: int
    """Seconds since the epoch when the server started."""
    max_logprobs: int
    default_max_tokens: int
    max_outstanding: int
    """Sequences that may run and wait at a time."""
    has_priorities: bool
    """Whether the scheduling policy looks at them."""
    keeps_targets: bool
    """Whether a request may bring targets of its own."""
    max_token_chars: int
    """Characters of the longest token: a bound on what a text may become."""

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(slots=True)
class ServerState:
    options: ServerOptions
    metrics: Metrics
    slo: SLO = field(default_factory=SLO)
    clock: Clock = field(default_factory=MonotonicClock)
    ledger: Ledger = field(init=False)
    phase: Phase = Phase.LOADING
    model: ServedModel | None = None
    num_in_flight: int = 0
    """Requests being answered that generate or tokenise."""
    text_pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(4, thread_name_prefix="takt-text")
    )
    """Threads that render and tokenise: what may take long never runs on the event loop."""
    bulk_pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(
            2,
            thread_name_prefix="takt-bulk",
            initializer=lambda: set_time_slice(DEFAULT_SLICE),
        )
    )
    """The same for what is large, so that a few documents never keep every chat waiting. Its
    threads compute for long and are in no hurry."""
    idempotency: IdempotencyTable = field(init=False)

    def __post_init__(self) -> None:
        self.idempotency = IdempotencyTable(
            self.options.idempotency_ttl_seconds, self.options.idempotency_max_bytes, self.clock
        )
        self.metrics.watch_idempotency(lambda: self.idempotency.num_kept_bytes)

        self.ledger = Ledger(
            self.clock,
            self.slo,
            on_gaps=self.metrics.observe_gaps,
            num_engines=len(self.metrics.engines),
        )
        self.metrics.watch_ledger(self.ledger)

    @property
    def num_running(self) -> int:
        """Requests being answered, and executions that outlived theirs."""
        return self.num_in_flight + self.idempotency.num_unattended

    @property
    def is_ready(self) -> bool:
        return (
            self.phase is Phase.SERVING
            and self.model is not None
            and self.model.engine.state is EngineState.READY
        )

    def ready_model(self, name: str | None) -> ServedModel:
        """The model by a name of the client's; raises 503 while not ready and 404 for another."""
        if self.phase is Phase.DRAINING:
            raise unavailable("the server is stopping")
        if self.model is None or self.phase is Phase.LOADING:
            raise unavailable("the model is loading", retry_after_seconds=5)
        check_model_name(name, self.model)
        if self.model.engine.state is not EngineState.READY:
            raise unavailable(f"the engine is {self.model.engine.state.value}")
        return self.model

    async def in_text_pool(self, function: Callable[[], ResultT], size: int) -> ResultT:
        """Runs work on `size` characters or ids in a thread of its kind."""
        pool = self.bulk_pool if size > BULK_SIZE else self.text_pool
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    def shut_down_pools(self) -> None:
        for pool in (self.text_pool, self.bulk_pool):
            pool.shutdown(wait=False, cancel_futures=True)


def longest_token_chars(tokenizer: Tokenizer) -> int:
    """Looks at the whole vocabulary once."""
    return max(
        len(tokenizer.token_bytes(i)) or len(tokenizer.token_text(i))
        for i in range(tokenizer.vocab_size)
    )


def check_model_name(name: str | None, model: ServedModel) -> None:
    if name is not None and name not in model.names:
        raise HttpError(
            404,
            f"the model {name[:128]!r} is not served here; this server has "
            f"{', '.join(model.names)}",
            param="model",
            code="model_not_found",
        )
