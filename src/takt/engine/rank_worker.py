"""One rank of an engine whose ranks are anywhere: what runs in its process, wherever that is."""

from __future__ import annotations

import functools
import gc
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from takt.engine.host_wire import HostOrder, RankBound, RankPlace, SegmentOpened
from takt.engine.memory import available_memory_bytes
from takt.engine.rank_failure import rank_failed
from takt.engine.rank_model import RankModel, RankProgram
from takt.engine.rank_wire import RankFailed, RankLoaded, RankOrder, RankReady
from takt.engine.wire import config_from_plain
from takt.errors import EngineDeadError
from takt.loading.hub import resolve_model
from takt.ops.create import num_usable_cpus
from takt.parallel.bridge import HostBridge
from takt.parallel.host_link import LinkHub, lost
from takt.parallel.host_map import host_key
from takt.parallel.segment import Segment
from takt.parallel.segment_door import SegmentDoor, fetch_segment

_log = logging.getLogger("takt.engine.rank")

LAST_WORDS_SECONDS = 1.0
"""Between a host's cause, which goes to the engine, and the end of its connections."""

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")


def _answering(
    method: Callable[Concatenate[RankWorker, P], AnswerT],
) -> Callable[Concatenate[RankWorker, P], AnswerT | RankFailed]:
    """A method that answers `RankFailed` instead of raising: errors cross hosts as sentences."""

    @functools.wraps(method)
    def answer(self: RankWorker, /, *args: P.args, **kwargs: P.kwargs) -> AnswerT | RankFailed:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            return rank_failed(self.rank, error)

    return answer


class RankWorker:
    """Called by the engine in the order of its methods, all from one thread.

    `ip` is the address of its host towards others. The first rank of each host leads it: it makes
    the host's shared memory, unless the engine is there and has, and runs the host's bridge.
    """

    def __init__(self, rank: int, ip: str, key: str | None = None) -> None:
        self.rank = rank
        self._ip = ip
        self._key = host_key() if key is None else key
        self._segment: Segment | None = None
        self._door: SegmentDoor | None = None
        self._bridge: HostBridge | None = None
        self._closing: threading.Timer | None = None

    def place(self) -> RankPlace:
        return RankPlace(self._key, num_usable_cpus())

    @_answering
    def load(self, order: RankOrder, num_peers: int) -> RankLoaded:
        """Reads and packs the rank's shard; `num_peers` other ranks are on this host."""
        logging.getLogger().setLevel(order.log_level)
        config = config_from_plain(order.config)
        path = Path(order.path)
        if not path.exists():
            # Another host's files may lie elsewhere: they have the model's name in common.
            path = resolve_model(config.model.model).path
        self._model = RankModel(config, path, self.rank, order.num_threads, num_peers=num_peers)
        return RankLoaded(
            self._model.num_bytes_read,
            self._model.weight_bytes,
            precision=self._model.precision.describe(),
            available_bytes=available_memory_bytes(),
        )

    @_answering
    def open(self, order: HostOrder) -> SegmentOpened:
        """Of the leader of a host that the engine is not on: makes what the host's ranks share."""
        plan = self._model.segment_plan(order.sizes)
        fd = Segment.create_file(plan)
        try:
            self._segment = Segment(plan, fd)
            self._door = SegmentDoor(fd)
        finally:
            os.close(fd)
        return SegmentOpened(self._door.name)

    @_answering
    def bind(self, order: HostOrder, door: str) -> RankBound:
        """Makes the program of a rank whose host's segment is behind `door`."""
        if self._segment is None:
            fd = fetch_segment(door)
            try:
                self._segment = Segment(self._model.segment_plan(order.sizes), fd)
            finally:
                os.close(fd)
        self._program: RankProgram = self._model.bind(order.sizes, self._segment)
        host_map = order.host_map
        host = host_map.hosts[self.rank]
        if host_map.num_hosts == 1 or self.rank != host_map.leader_of(host):
            return RankBound({})
        self._bridge = HostBridge(
            LinkHub(self._ip, order.token, self._lose),
            host_map,
            host,
            self._segment,
            order.sizes.limits,
            block_size=order.sizes.block_size,
            hidden_size=self._model.model.hidden_size,
        )
        return RankBound(self._bridge.addresses)

    @_answering
    def connect(self, addresses: dict[str, str]) -> RankReady:
        """Of leaders: connects the host to the others, which do the same meanwhile."""
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._bridge is not None:
            self._bridge.connect(addresses)
        return RankReady()

    def serve(self) -> str:
        """Runs steps until they end; returns why, or "" where others know better."""
        assert self._segment is not None
        # What loading left lives as long as the process: no collection needs to look at it again.
        gc.collect()
        gc.freeze()
        if self._bridge is not None:
            self._bridge.start()
        cause = ""
        try:
            self._program.serve()
        except EngineDeadError as error:
            _log.debug("rank %d ends: %s", self.rank, error)
        except Exception as error:
            _log.exception("rank %d died", self.rank)
            cause = f"rank {self.rank} failed: {type(error).__name__}: {error}"
        self._segment.abort()
        if self._bridge is not None:
            self._bridge.end("")
            self._bridge.join()
            cause = cause or self._bridge.cause
            # A connection's end would be heard first, and says less than the cause.
            self._closing = threading.Timer(LAST_WORDS_SECONDS, self._bridge.close)
            self._closing.daemon = True
            self._closing.start()
        return cause

    def close(self) -> None:
        """For a worker that does not end with its process."""
        if self._closing is not None:
            self._closing.cancel()
        if self._bridge is not None:
            self._bridge.close()
        self._model.close()

    def _lose(self, name: str) -> None:
        assert self._bridge is not None
        self._bridge.end(lost(name))
