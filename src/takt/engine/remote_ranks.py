"""The ranks of an engine that has none in its own process: started, connected, watched, ended."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from takt.config import EngineConfig
from takt.engine.host_wire import HostOrder, RankPlace
from takt.engine.rank_failure import raise_failure
from takt.engine.rank_model import check_num_ranks, layout_of, rank_threads
from takt.engine.rank_wire import RankFailed, RankLoaded, RankOrder, RankSizes
from takt.engine.wire import config_to_plain
from takt.parallel.host_link import LinkHub, LinkReceiver, LinkSender, lost
from takt.parallel.host_map import ENGINE_HOST, HostMap, host_key
from takt.parallel.segment import Segment, SegmentPlan
from takt.parallel.segment_door import SegmentDoor
from takt.parallel.step_links import RESULTS, max_step_bytes, steps_name

_log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_CAUSE_SECONDS = 2.0


class RankWorkers(Protocol):
    """A `RankWorker` for each rank, wherever it runs."""

    ip: str
    """Of the engine's host, towards the others."""

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Has the ranks run a method at once; yields each one's answer as it comes.

        Raises `EngineDeadError` if one ends meanwhile.
        """
        ...

    def max_ranks_beside(self, rank: int) -> int | None:
        """Ranks of any engine that may be on a rank's host; None if all that there are may."""
        ...

    def serve(self, on_end: Callable[[str], None]) -> None:
        """Has all ranks run steps; `on_end` gets a sentence when the first has ended."""
        ...

    def close(self) -> None:
        """Ends all of them."""
        ...


class RemoteRanks:
    """Ends all waits of the engine as soon as a rank or a connection is gone."""

    def __init__(self, workers: RankWorkers, config: EngineConfig) -> None:
        self._workers = workers
        self._config = config
        self._lock = threading.Lock()
        self._cause: str | None = None
        self._has_ended = threading.Event()
        self._is_closed = False
        self._hub: LinkHub | None = None
        self.segment: Segment | None = None
        """Of the engine's host, with the buffers of all steps."""
        self.step_links: list[LinkSender] = []
        self.results: LinkReceiver | None = None
        """None if the rank that samples is on the engine's host."""
        self._sentinel = os.eventfd(0)
        self.sentinels = (self._sentinel,)
        places = dict(self._call("place", {rank: () for rank in range(config.parallel.num_ranks)}))
        self._places: list[RankPlace] = [places[rank] for rank in sorted(places)]
        keys = [place.host_key for place in self._places]
        self.host_map = HostMap.of(layout_of(config), host_key(), keys)
        self.num_threads = [
            rank_threads(config, place.num_cpus, self._num_sharing(rank))
            for rank, place in enumerate(self._places)
        ]
        self._check_cpus()

    def load(self, path: Path) -> list[RankLoaded]:
        """What each rank has loaded; raises the first rank's error, if one fails."""
        level = logging.getLogger().getEffectiveLevel()
        plain = config_to_plain(self._config)
        orders = {
            rank: (
                RankOrder(rank, str(path.absolute()), num_threads, level, plain),
                len(self._neighbours(rank)) - 1,
            )
            for rank, num_threads in enumerate(self.num_threads)
        }
        loaded = dict(self._call("load", orders))
        return [loaded[rank] for rank in sorted(loaded)]

    @property
    def num_stages_at_once(self) -> int:
        """Stages that have CPUs to work at the same time."""
        tensor_size, total = self.host_map.layout.tensor_size, 0
        for leader in self.host_map.leaders:
            num_threads = tensor_size * self.num_threads[leader]
            num_stages = len(self._neighbours(leader)) // tensor_size
            total += max(1, min(num_stages, self._places[leader].num_cpus // num_threads))
        return total

    def room_bytes(self, loaded: list[RankLoaded]) -> int:
        """Memory for the KV pool of all ranks, so that each host has room for its ranks' part."""
        return min(
            one.available_bytes * len(loaded) // len(self._neighbours(rank))
            for rank, one in enumerate(loaded)
        )

    def bind(self, sizes: RankSizes, plan: SegmentPlan) -> Segment:
        """Has all ranks make their programs, connects their hosts, and returns when they wait for
        steps."""
        host_map = self.host_map
        order = HostOrder(sizes, host_map, secrets.token_bytes(_TOKEN_BYTES))
        fd = Segment.create_file(plan)
        door = SegmentDoor(fd)
        try:
            self.segment = Segment(plan, fd)
            doors = {ENGINE_HOST: door.name}
            leaders = {host_map.leader_of(host): (order,) for host in host_map.remote_hosts}
            for rank, opened in self._call("open", leaders):
                doors[host_map.hosts[rank]] = opened.door
            binds = {rank: (order, doors[host]) for rank, host in enumerate(host_map.hosts)}
            addresses: dict[str, str] = {}
            for _, bound in self._call("bind", binds):
                addresses.update(bound.addresses)
        finally:
            door.close()
            os.close(fd)
        if host_map.num_hosts > 1:
            self._connect(order, addresses)
        self._workers.serve(self.end)
        if self._hub is not None:
            self._hub.watch()
        return self.segment

    def cause(self) -> str:
        """Why steps have stopped: they may do so before the one who knows why has said it."""
        self._has_ended.wait(_CAUSE_SECONDS)
        return self._cause or "a rank has ended"

    def close(self) -> None:
        """Ends all ranks."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self.segment is not None:
            self.segment.abort()
        if self._hub is not None:
            self._hub.close()  # other hosts see it, and end
        self._workers.close()
        os.close(self._sentinel)

    def _connect(self, order: HostOrder, addresses: dict[str, str]) -> None:
        host_map = self.host_map
        self._hub = LinkHub(self._workers.ip, order.token, self._lose)
        if host_map.sampling_host != ENGINE_HOST:
            self.results = self._hub.receiver(RESULTS, max_step_bytes(order.sizes.limits))
            addresses[RESULTS] = self.results.address
        # First, because a leader waits for the steps' connection.
        for host in host_map.remote_hosts:
            name = steps_name(host)
            self.step_links.append(self._hub.sender(name, addresses[name]))
        for _ in self._call("connect", {rank: (addresses,) for rank in host_map.leaders}):
            pass
        if self.results is not None:
            self.results.accept()

    def _call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        for rank, answer in self._workers.call(method, arguments):
            if isinstance(answer, RankFailed):
                raise_failure(answer)
            yield rank, answer

    def _neighbours(self, rank: int) -> list[int]:
        """Ranks of the same host, itself among them."""
        return self.host_map.ranks_on(self.host_map.hosts[rank])

    def _num_sharing(self, rank: int) -> int:
        """Ranks that share the CPUs of a rank's host: those of other replicas too, if they can."""
        here, parallel = len(self._neighbours(rank)), self._config.parallel
        if parallel.data_parallel_size == 1:
            return here
        total = parallel.num_ranks * parallel.data_parallel_size
        most = self._workers.max_ranks_beside(rank)
        return total if most is None else max(here, min(total, most))

    def _check_cpus(self) -> None:
        for leader in self.host_map.leaders:
            num_cpus = self._places[leader].num_cpus
            warning = check_num_ranks(self._config, num_cpus, self._num_sharing(leader))
            if warning is not None:
                _log.warning(warning)

    def _lose(self, name: str) -> None:
        self.end(lost(name))

    def end(self, cause: str) -> None:
        """Ends all waits; the first cause is the one that is told."""
        with self._lock:
            if self._is_closed or self._cause is not None:
                return
            # Whoever is woken asks for it.
            self._cause = cause
            self._has_ended.set()
            os.eventfd_write(self._sentinel, 1)
            if self.segment is not None:
                self.segment.abort()
            if self._hub is not None:
                self._hub.stop()
