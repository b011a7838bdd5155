"""`RankWorker`s in threads of this process, told that they are on hosts of their own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from takt.engine.rank_worker import RankWorker
from takt.parallel.host_map import host_key
from takt.parallel.layout import ParallelLayout

HERE = host_key()


class ThreadWorkers:
    """`keys[rank]` is the host of a rank; `HERE` is the engine's."""

    ip = "127.0.0.1"

    def __init__(
        self, layout: ParallelLayout, keys: Sequence[str], max_ranks: int | None = None
    ) -> None:
        """`max_ranks` is what each host has room for."""
        self._max_ranks = max_ranks
        assert len(keys) == layout.num_ranks
        self.workers = [RankWorker(rank, self.ip, key) for rank, key in enumerate(keys)]
        self._threads = ThreadPoolExecutor(layout.num_ranks)

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        runs = {
            self._threads.submit(getattr(self.workers[rank], method), *each): rank
            for rank, each in arguments.items()
        }
        for run in as_completed(runs, timeout=120):
            yield runs[run], run.result()

    def max_ranks_beside(self, rank: int) -> int | None:
        return self._max_ranks

    def serve(self, on_end: Callable[[str], None]) -> None:
        def end(run: Future[str]) -> None:
            if run.result():
                on_end(run.result())

        for worker in self.workers:
            self._threads.submit(worker.serve).add_done_callback(end)

    def close(self) -> None:
        self._threads.shutdown()
        for worker in self.workers:
            worker.close()
        gc.unfreeze()  # unlike a rank's own process, this one goes on
