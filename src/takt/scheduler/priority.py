"""Lower priority numbers first, then arrival."""

from __future__ import annotations

from takt.scheduler.base import Scheduler
from takt.scheduler.request import Request


class PriorityScheduler(Scheduler):
    """Requests by their `priority`, equal ones in the order of their arrival.

    Where output is not reserved, a request displaces running ones with a higher number.
    """

    def policy_key(self, request: Request) -> tuple[int, ...]:
        return (request.priority, request.arrival_ns)

    def may_displace(self, waiting: Request, running: Request) -> bool:
        return waiting.priority < running.priority
