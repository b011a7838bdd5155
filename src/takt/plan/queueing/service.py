"""Service times: the moments that queues need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from takt.plan.errors import PlanInputError, require_positive

_NORMAL = NormalDist()


class Service(Protocol):
    def moment(self, order: int) -> float:
        """E[S^order]."""
        ...


@dataclass(frozen=True, slots=True)
class DeterministicService:
    time_s: float

    def __post_init__(self) -> None:
        require_positive("a service time", self.time_s)

    def moment(self, order: int) -> float:
        return self.time_s**order


@dataclass(frozen=True, slots=True)
class TruncatedLogNormal:
    """exp of a normal (`mu`, `sigma`), given that it lies within [`low_s`, `high_s`].

    Moments are exact: E[S^k] = exp(k mu + k^2 sigma^2 / 2) (F(b - k sigma) - F(a - k sigma)) /
    (F(b) - F(a)), with a, b = (ln bound - mu) / sigma and F the normal distribution. All are
    finite, so a queue's tail decays exponentially; without the cut it would not.
    """

    mu: float
    sigma: float
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)
        require_positive("the upper bound of a service time", self.high_s)
        if not 0 <= self.low_s < self.high_s or not math.isfinite(self.mu):
            raise PlanInputError(
                f"a service time's bounds must be 0 <= low < high and mu finite, got "
                f"[{self.low_s}, {self.high_s}] and {self.mu}"
            )
        if self._mass(0) <= 0:
            raise PlanInputError(
                f"no service time lies within [{self.low_s}, {self.high_s}] for mu {self.mu} and "
                f"sigma {self.sigma}"
            )

    @classmethod
    def from_mean(
        cls, mean_s: float, squared_variation: float, *, high_over_mean: float = 20.0
    ) -> TruncatedLogNormal:
        """A log-normal of this mean and squared variation before it is cut above."""
        require_positive("the mean of a service time", mean_s)
        require_positive("the squared variation of a service time", squared_variation)
        sigma = math.sqrt(math.log1p(squared_variation))
        mu = math.log(mean_s) - sigma**2 / 2
        return cls(mu, sigma, 0.0, high_over_mean * mean_s)

    def moment(self, order: int) -> float:
        growth = math.exp(order * self.mu + order**2 * self.sigma**2 / 2)
        return growth * self._mass(order) / self._mass(0)

    def quantile(self, share: float) -> float:
        """The time that a share of services stays within; inverts the cut distribution."""
        if not 0 < share < 1:
            return self.low_s if share <= 0 else self.high_s
        low = 0.0 if self.low_s == 0 else _NORMAL.cdf(self._standard(self.low_s))
        high = _NORMAL.cdf(self._standard(self.high_s))
        place = low + share * (high - low)
        time = math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(place))
        return min(max(time, self.low_s), self.high_s)

    def _mass(self, order: int) -> float:
        upper = _NORMAL.cdf(self._standard(self.high_s) - order * self.sigma)
        if self.low_s == 0:
            return upper
        return upper - _NORMAL.cdf(self._standard(self.low_s) - order * self.sigma)

    def _standard(self, time_s: float) -> float:
        return (math.log(time_s) - self.mu) / self.sigma


def squared_variation(service: Service) -> float:
    """Variance over squared mean."""
    return service.moment(2) / service.moment(1) ** 2 - 1
