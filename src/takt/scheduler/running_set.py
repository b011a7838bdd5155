"""Requests that run, in the policy's order."""

from __future__ import annotations

from operator import attrgetter

from takt.scheduler.request import Request

_order_key = attrgetter("order_key")


class RunningSet(dict[Request, None]):
    """An ordered set. Most requests come in order, so that it is sorted only when one did not."""

    def __init__(self) -> None:
        super().__init__()
        self._is_sorted = True

    def insert(self, request: Request) -> None:
        last = next(reversed(self), None)
        if last is not None and request.order_key < last.order_key:
            self._is_sorted = False
        self[request] = None

    def reorder(self) -> None:
        """Some request's place has changed."""
        self._is_sorted = False

    def sort(self) -> None:
        """Puts all into order; costs nothing if they are."""
        if not self._is_sorted:
            ordered = sorted(self, key=_order_key)
            self.clear()
            self.update(dict.fromkeys(ordered))
            self._is_sorted = True
