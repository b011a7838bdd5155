"""Blocks of sequences that ended or were preempted while steps in flight still touch them."""

from __future__ import annotations

from takt.errors import InvariantError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.request import Request
from takt.scheduler.reservation import KVReservation


class Retirement:
    """Gives a sequence's blocks back when the last step that touches them is updated."""

    def __init__(self, kv: KVCacheManager, reservation: KVReservation) -> None:
        self._kv = kv
        self._reservation = reservation
        self._leaving: dict[int, list[Request]] = {}  # by that last step
        self.last_updated_step = -1

    @property
    def is_pending(self) -> bool:
        """Whether blocks come back when a step in flight is updated."""
        return bool(self._leaving)

    def retire(self, request: Request) -> None:
        """Takes the blocks of a sequence, at once if nothing in flight touches them."""
        if request.last_step_id > self.last_updated_step:
            self._leaving.setdefault(request.last_step_id, []).append(request)
        else:
            self._give_back(request)

    def begin_update(self, step_id: int) -> None:
        """Steps are updated one after the other."""
        if step_id != self.last_updated_step + 1:
            raise InvariantError(f"step {step_id} was updated after step {self.last_updated_step}")
        self.last_updated_step = step_id

    def end_step(self) -> None:
        """Gives back what waited for the step that was just updated."""
        for request in self._leaving.pop(self.last_updated_step, ()):
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._kv.free(request)
        self._reservation.free(request)
