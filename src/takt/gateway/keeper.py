"""Keeps what this gateway holds: signs of life for its leases, streams to the store."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from takt.clock import Clock
from takt.gateway.metrics import GatewayMetrics
from takt.gateway.recorder import RecordWriter
from takt.gateway.store.base import Store, StoreUnavailableError

logger = logging.getLogger("takt.gateway")

NS_PER_MS = 1_000_000

FLUSH_SECONDS = 0.1
MAX_FLUSHED = 50
"""Streams written to the store each time, those that waited longest first: up to 50 streams are a
tenth of a second old there, 500 a second. Only who joins at another gateway reads them there, and a
write for each piece would cost all streams more than its passing on does."""

MAX_LEASES_PER_CALL = 512

SWEEP_SECONDS = 30.0
MAX_SWEPT = 500


class LeaseKeeper:
    """Beats three times a lease, so that two beats may be lost."""

    def __init__(self, store: Store, lease_ms: int, clock: Clock, metrics: GatewayMetrics) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._clock = clock
        self._metrics = metrics
        self._writers: dict[RecordWriter, None] = {}
        """In the order in which they were flushed last."""
        self._available_since_ns: int | None = clock.now_ns()
        self.on_store_back: Callable[[], object] = lambda: None

    @property
    def allows_takeover(self) -> bool:
        """False until the store has been there for a whole lease: while it was away, no holder
        could give a sign of life, and none is dead for that."""
        return (
            self._available_since_ns is not None
            and self._clock.now_ns() - self._available_since_ns >= self._lease_ms * NS_PER_MS
        )

    @property
    def is_store_up(self) -> bool:
        return self._available_since_ns is not None

    def add(self, writer: RecordWriter) -> None:
        self._writers[writer] = None

    def remove(self, writer: RecordWriter) -> None:
        self._writers.pop(writer, None)

    def store_answered(self) -> None:
        if self._available_since_ns is None:
            self._available_since_ns = self._clock.now_ns()
            logger.warning("the store answers again")
            self.on_store_back()
        self._metrics.store_up.set(1)

    def store_failed(self, error: StoreUnavailableError) -> None:
        if self._available_since_ns is not None:
            logger.error("%s", error)
        self._available_since_ns = None
        self._metrics.store_up.set(0)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat_for_ever())
            tasks.create_task(self._flush_for_ever())
            tasks.create_task(self._sweep_for_ever())

    async def release(self) -> None:
        """Gives up every lease at once, for others to take over without waiting."""
        held = [writer.held for writer in self._writers]
        if held:
            await self._store.heartbeat(held, 0)

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                await self._beat()
                self.store_answered()
            except StoreUnavailableError as error:
                self.store_failed(error)

    async def _beat(self) -> None:
        writers = list(self._writers)
        if not (writers and self.is_store_up):
            await self._store.ping(writes=not self.is_store_up)
        for at in range(0, len(writers), MAX_LEASES_PER_CALL):
            some = writers[at : at + MAX_LEASES_PER_CALL]
            answers = await self._store.heartbeat([one.held for one in some], self._lease_ms)
            for writer, is_held in zip(some, answers, strict=True):
                # One that has finished meanwhile holds nothing, and that is no loss.
                if not is_held and writer in self._writers:
                    writer.lose()

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            results = await asyncio.gather(
                *(writer.flush() for writer in self._longest_unwritten()), return_exceptions=True
            )
            for result in results:
                if isinstance(result, StoreUnavailableError):
                    self.store_failed(result)
                elif isinstance(result, Exception):
                    raise result

    def _longest_unwritten(self) -> list[RecordWriter]:
        """Up to `MAX_FLUSHED` writers with news, which are then last in line."""
        with_news = (writer for writer in self._writers if writer.has_news)
        chosen = list(itertools.islice(with_news, MAX_FLUSHED))
        for writer in chosen:
            del self._writers[writer]
            self._writers[writer] = None
        return chosen

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                while await self._store.sweep(MAX_SWEPT) == MAX_SWEPT:
                    await asyncio.sleep(0)
                self._metrics.dead.set(await self._store.num_dead())
            except StoreUnavailableError as error:
                self.store_failed(error)
            await asyncio.sleep(SWEEP_SECONDS)
