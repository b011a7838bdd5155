"""The other ranks of an engine, as the engine core sees them: started, watched, ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from takt.config import EngineConfig
from takt.engine.rank_failure import raise_failure
from takt.engine.rank_model import RankModel
from takt.engine.rank_wire import (
    RankFailed,
    RankLoaded,
    RankMessage,
    RankOrder,
    RankReady,
    RankSizes,
    receive,
    send,
    socket_pair,
)
from takt.engine.wire import config_to_plain
from takt.errors import EngineDeadError
from takt.parallel.pinning import RankCpus
from takt.parallel.segment import Segment

RANK_COMMAND = (sys.executable, "-P", "-m", "takt.engine.rank_process")

_END_SECONDS = 3.0
"""Time that ranks have to end by themselves."""

_CAUSE_SECONDS = 2.0
"""Time for the watcher to see how a rank has ended that others know to be gone."""


class RankGroup(Protocol):
    """Ranks 1 and up; rank 0 belongs to the caller."""

    sentinels: tuple[int, ...]

    def wait_loaded(self) -> list[RankLoaded]:
        """What each rank has loaded; raises the first rank's error, if one fails."""
        ...

    def bind(self, sizes: RankSizes, segment: Segment, fd: int) -> None:
        """Has all ranks make their programs, and returns when they wait for steps."""
        ...

    def cause(self) -> str:
        """Why steps have stopped."""
        ...

    def close(self) -> None:
        """Ends all ranks; the segment has been aborted, if there is one."""
        ...


@dataclass(slots=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    connection: socket.socket
    sentinel: int


class RankProcesses:
    """A process for each rank. When one ends, all waits in shared memory end at once."""

    def __init__(
        self,
        config: EngineConfig,
        path: Path,
        num_threads: int,
        log_level: int,
        ranks: Sequence[RankCpus] | None = None,
    ) -> None:
        """`ranks` says where each is pinned."""
        self._ranks: list[_Rank] = []
        self._segment: Segment | None = None
        self._closing = False
        self._cause: str | None = None
        self._watcher = threading.Thread(target=self._watch, name="takt-ranks", daemon=True)
        try:
            for number in range(1, config.parallel.num_ranks):
                self._ranks.append(_start(number))
                cpus = [] if ranks is None else list(ranks[number].cpus)
                order = RankOrder(
                    number, str(path), num_threads, log_level, config_to_plain(config), cpus
                )
                self._tell(self._ranks[-1], order)
        except BaseException:
            self.close()
            raise
        self.sentinels = tuple(rank.sentinel for rank in self._ranks)

    def wait_loaded(self) -> list[RankLoaded]:
        return [
            message for message in map(self._answer, self._ranks) if isinstance(message, RankLoaded)
        ]

    def bind(self, sizes: RankSizes, segment: Segment, fd: int) -> None:
        self._segment = segment
        for rank in self._ranks:
            self._tell(rank, sizes, fd)
        for rank in self._ranks:
            if not isinstance(self._answer(rank), RankReady):
                raise EngineDeadError(f"rank {rank.number} is out of order")
        self._watcher.start()

    def cause(self) -> str:
        # The watcher names the cause before it ends the waits; an idle engine may be first to see.
        self._watcher.join(_CAUSE_SECONDS)
        return self._cause or "a rank has ended"

    def close(self) -> None:
        self._closing = True
        for rank in self._ranks:
            rank.connection.close()
        deadline = time.monotonic() + _END_SECONDS
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
            os.close(rank.sentinel)
        self._ranks = []

    def _tell(self, rank: _Rank, message: RankMessage, fd: int | None = None) -> None:
        try:
            send(rank.connection, message, fd)
        except OSError:
            self._answer(rank)  # its last words, or how it ended
            raise EngineDeadError(f"rank {rank.number} takes no message") from None

    def _answer(self, rank: _Rank) -> RankMessage:
        try:
            message, _ = receive(rank.connection)
        except ConnectionResetError:
            message = None  # it ended before it had read what we sent
        if isinstance(message, RankFailed):
            raise_failure(message)
        if message is None:
            raise EngineDeadError(_ending(rank))
        return message

    def _watch(self) -> None:
        poller = select.poll()
        by_sentinel = {rank.sentinel: rank for rank in self._ranks}
        for sentinel in by_sentinel:
            poller.register(sentinel, select.POLLIN)
        ended, _ = poller.poll()[0]
        if self._closing:
            return
        self._cause = _ending(by_sentinel[ended])
        if self._segment is not None:
            self._segment.abort()


class RankThreads:
    """A thread for each rank of one process: for tests, and for looking into all of them."""

    sentinels: tuple[int, ...] = ()

    def __init__(self, config: EngineConfig, path: Path, num_threads: int) -> None:
        self._models = [
            RankModel(config, path, rank, num_threads)
            for rank in range(1, config.parallel.num_ranks)
        ]
        self._threads: list[threading.Thread] = []
        self._cause: str | None = None

    def wait_loaded(self) -> list[RankLoaded]:
        return [RankLoaded(model.num_bytes_read, model.weight_bytes) for model in self._models]

    def bind(self, sizes: RankSizes, segment: Segment, fd: int) -> None:
        for model in self._models:
            program = model.bind(sizes, segment)
            run = self._guarded(program.serve, model.rank, segment)
            self._threads.append(threading.Thread(target=run, daemon=True))
        for thread in self._threads:
            thread.start()

    def cause(self) -> str:
        return self._cause or "a rank has ended"

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        for model in self._models:
            model.close()
        self._threads, self._models = [], []

    def _guarded(
        self, serve: Callable[[], None], rank: int, segment: Segment
    ) -> Callable[[], None]:
        def run() -> None:
            try:
                serve()
            except EngineDeadError:
                pass
            except Exception as error:
                self._cause = f"rank {rank} failed: {error}"
                segment.abort()

        return run


def _start(number: int) -> _Rank:
    ours, theirs = socket_pair()
    with theirs:
        # A process group of its own: a terminal's Ctrl-C is for the engine to act on, and would
        # come before a rank that is being loaded can ignore it.
        process = subprocess.Popen(
            [*RANK_COMMAND, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            process_group=0,
            pass_fds=[theirs.fileno()],
        )
    return _Rank(number, process, ours, os.pidfd_open(process.pid))


def _ending(rank: _Rank) -> str:
    return_code = rank.process.wait()
    if return_code >= 0:
        return f"rank {rank.number} ended with exit code {return_code}"
    return f"rank {rank.number} was ended by {signal.Signals(-return_code).name}"
