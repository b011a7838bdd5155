"""How late a first token may be expected for a request to be let in: its target, weighed by cost.

A request with a late deadline finds room where others find none. Were that all, costly requests
with late deadlines would take ever more of a machine that has too much to do: at half as much again
as its capacity all prompts of 3,000 tokens, due within 11 s, were let in, and a quarter of those of
400, due within 3 s. So the wait that a target leaves is divided by what the prompt costs, in those
that ask in the mean; but as long as the server's own target everybody may wait. While nobody has to
wait this refuses none.
"""

from __future__ import annotations

from dataclasses import dataclass

_MEAN_OF = 64
"""Requests that the mean cost is of, more or less: older ones count less and less."""


class MeanCost:
    """Of the prompts that ask, let in or not."""

    def __init__(self) -> None:
        self._num = 0
        self._mean_ns = 0.0

    def add(self, alone_ns: float) -> None:
        """`alone_ns` is the time that a prompt takes alone on the machine."""
        self._num = min(self._num + 1, _MEAN_OF)
        self._mean_ns += (alone_ns - self._mean_ns) / self._num

    def weight(self, alone_ns: float) -> float:
        """What a prompt costs, in mean ones; at least 1."""
        return max(1.0, alone_ns / self._mean_ns) if self._mean_ns > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of one request; times in nanoseconds, to the first token."""

    alone_ns: float
    """What its prompt takes alone."""
    weight: float
    """Its cost, in mean ones; at least 1."""
    common_wait_ns: float | None
    """What everybody may wait: the server's target; None if it has none."""

    def ttft_ns(self, target_ns: int) -> float:
        """The latest first token with which it is let in."""
        wait_ns = target_ns - self.alone_ns
        if self.common_wait_ns is None or wait_ns <= self.common_wait_ns:
            return float(target_ns)
        return self.alone_ns + max(wait_ns / self.weight, self.common_wait_ns)

    def least_target_ns(self, ttft_ns: float) -> float:
        """The least target with which it is let in if its first token comes then."""
        wait_ns = ttft_ns - self.alone_ns
        if self.common_wait_ns is None or wait_ns <= self.common_wait_ns:
            return ttft_ns
        return self.alone_ns + wait_ns * self.weight
