"""Requests that wait, in the policy's order."""

from __future__ import annotations

import heapq

from takt.scheduler.request import Request

_MAX_STALE = 64
"""Discarded entries that may pile up before the heap is rebuilt; any small number will do."""


class WaitingQueue:
    """A heap by `order_key`; a discarded request is skipped when it comes to the front."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], Request]] = []
        self._discarded: set[Request] = set()

    def __len__(self) -> int:
        return len(self._heap) - len(self._discarded)

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.order_key, request))

    def peek(self) -> Request | None:
        while self._heap:
            request = self._heap[0][1]
            if request not in self._discarded:
                return request
            self._discarded.remove(request)
            heapq.heappop(self._heap)
        return None

    def first(self, count: int) -> list[Request]:
        """Up to `count` of those that wait, in order; looks at all of them."""
        front = heapq.nsmallest(count + len(self._discarded), self._heap)
        return [entry[1] for entry in front if entry[1] not in self._discarded][:count]

    def pop(self) -> None:
        """Takes off the request that `peek` returned."""
        heapq.heappop(self._heap)

    def discard(self, request: Request) -> None:
        """Takes off a request that waits and will not be pushed again."""
        self._discarded.add(request)
        if len(self._discarded) > _MAX_STALE + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1] not in self._discarded]
            heapq.heapify(self._heap)
            self._discarded.clear()
