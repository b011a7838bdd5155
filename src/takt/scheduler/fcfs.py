"""First come, first served."""

from __future__ import annotations

from takt.scheduler.base import Scheduler
from takt.scheduler.request import Request


class FCFSScheduler(Scheduler):
    """Requests in the order of their arrival; nobody overtakes."""

    def policy_key(self, request: Request) -> tuple[int, ...]:
        return (request.arrival_ns,)

    def may_displace(self, waiting: Request, running: Request) -> bool:
        return False
