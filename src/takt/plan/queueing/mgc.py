"""M/G/c: Poisson arrivals, c equal servers, first come first served."""

from __future__ import annotations

import math
from dataclasses import dataclass

from takt.plan.errors import require_positive, require_whole
from takt.plan.queueing.service import Service, squared_variation
from takt.plan.queueing.validity import Validity


@dataclass(frozen=True, slots=True)
class MGc:
    """Waits in seconds before service begins; infinite from load 1 on.

    Allen and Cunneen: M/M/c's mean wait times (c_a^2 + c_s^2) / 2, here c_a^2 = 1. The tail is
    exponential with this mean given that there is a wait, whose probability is M/M/c's.
    """

    arrivals_per_s: float
    service: Service
    num_servers: int

    def __post_init__(self) -> None:
        require_positive("the arrival rate", self.arrivals_per_s)
        require_whole("the number of servers", self.num_servers)

    @property
    def load(self) -> float:
        return self.arrivals_per_s * self.service.moment(1) / self.num_servers

    @property
    def wait_probability(self) -> float:
        """Erlang's C, from his B by the stable recursion."""
        offered, servers = self.load * self.num_servers, self.num_servers
        if self.load >= 1:
            return 1.0
        blocked = 1.0
        for n in range(1, servers + 1):
            blocked = offered * blocked / (n + offered * blocked)
        return blocked / (1 - self.load * (1 - blocked))

    @property
    def mean_wait_s(self) -> float:
        if self.load >= 1:
            return math.inf
        rate = self.num_servers / self.service.moment(1) - self.arrivals_per_s
        return self.wait_probability / rate * (1 + squared_variation(self.service)) / 2

    def wait_quantile_s(self, quantile: float) -> float:
        probability = self.wait_probability
        if self.load >= 1:
            return math.inf
        if 1 - quantile >= probability:
            return 0.0
        return self.mean_wait_s / probability * math.log(probability / (1 - quantile))

    def validity(self) -> Validity:
        load = self.load
        if load >= 1:
            return Validity(False, None, f"unstable: the load is {load:.2f}")
        if self.num_servers > 4 or load < 0.7:
            note = "within a fifth at 8 servers or half load, where waits are short"
            return Validity(False, 0.2, note)
        return Validity(True, 0.1, "P99 of the wait within 10 % up to 4 servers from load 0.7 on")
