"""How late a first token may be expected for a request to be let in: its target, weighed by cost.

A request with a late deadline finds room where others find none. Were that all, costly requests
with late deadlines would take ever more of a machine that has too much to do: at half as much again
as its capacity all prompts of 3,000 tokens, due within 11 s, were let in, and a quarter of those of
400, due within 3 s. So the wait for others that a target leaves is divided by what the prompt
costs, in mean ones; but as long as the server's own target leaves to a mean prompt everybody may
wait. Where no prompt waits this refuses none.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.85
"""Share of a target, or of a wait, that a predicted time may take: the forecast is of the mean."""

_MEAN_OF = 64
"""Requests that the mean cost is of, more or less: older ones count less and less."""

_MAX_WEIGHT = 10.0
"""Where most prompts are tiny, one that costs hundreds of them is to have a target too with which
it is let in."""


class MeanCost:
    """Of the prompts that were let in: one that is refused may come again and again."""

    def __init__(self) -> None:
        self._num = 0
        self.mean_ns = 0.0

    def add(self, alone_ns: float) -> None:
        """`alone_ns` is the time that a prompt takes alone on the machine."""
        self._num = min(self._num + 1, _MEAN_OF)
        self.mean_ns += (alone_ns - self.mean_ns) / self._num


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of one request; times in nanoseconds, to the first token."""

    alone_ns: float
    """What its prompt takes alone: its cost."""
    first_ns: float
    """What it takes beside the streams that run now, with no other prompt before it."""
    mean_ns: float
    """What a mean prompt takes."""
    server_ttft_ns: float | None
    """The server's target; None if it has none, and nothing is weighed."""

    def latest_ns(self, target_ns: float) -> float:
        """The latest prediction with which it is let in."""
        latest_ns = CONFIDENCE * target_ns
        if self.server_ttft_ns is None:
            return latest_ns
        wait_ns = max((target_ns - self.first_ns) / self._weight, self._common_wait_ns)
        return min(latest_ns, self.first_ns + CONFIDENCE * wait_ns)

    def least_target_ns(self, predicted_ns: float) -> float:
        """The least target with which it is let in with this prediction."""
        target_ns = predicted_ns / CONFIDENCE
        if self.server_ttft_ns is None:
            return target_ns
        wait_ns = (predicted_ns - self.first_ns) / CONFIDENCE
        if wait_ns <= self._common_wait_ns:
            return target_ns
        return max(target_ns, self.first_ns + wait_ns * self._weight)

    @property
    def _weight(self) -> float:
        """The prompt's cost, in mean ones."""
        cost = self.alone_ns / self.mean_ns if self.mean_ns > 0 else 1.0
        return min(max(1.0, cost), _MAX_WEIGHT)

    @property
    def _common_wait_ns(self) -> float:
        """What the server's target leaves to a mean prompt."""
        assert self.server_ttft_ns is not None
        return max(0.0, self.server_ttft_ns - self.mean_ns)
