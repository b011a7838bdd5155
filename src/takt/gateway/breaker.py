"""A circuit breaker: an upstream that mostly fails is left alone, and asked once in a while."""

from __future__ import annotations

import enum
from collections import deque

from takt.clock import Clock
from takt.gateway.retry import Uniform

NS_PER_MS = 1_000_000

WINDOW_NS = 10_000 * NS_PER_MS
MIN_ATTEMPTS = 10
"""Fewer attempts in the window say nothing."""
FAILURE_SHARE = 0.6
COOL_DOWN_MS = 250
MAX_COOL_DOWN_MS = 4_000


class BreakerState(enum.IntEnum):
    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Closed until `FAILURE_SHARE` of the window's attempts fail; then open for a cool-down.

    After it one attempt is let through (half open): its success closes the breaker, its failure
    opens it for twice the time, up to `MAX_COOL_DOWN_MS`.
    """

    def __init__(self, clock: Clock, uniform: Uniform) -> None:
        self._clock = clock
        self._uniform = uniform
        self._attempts: deque[tuple[int, bool]] = deque()
        self._num_failures = 0
        self._cool_down_ms = COOL_DOWN_MS
        self._open_until_ns: int | None = None
        self._probe_in_flight = False

    @property
    def state(self) -> BreakerState:
        if self._open_until_ns is None:
            return BreakerState.CLOSED
        if self._clock.now_ns() < self._open_until_ns:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN

    @property
    def can_pass(self) -> bool:
        state = self.state
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and not self._probe_in_flight
        )

    @property
    def wait_ms(self) -> int:
        """How long until it is worth asking again."""
        if self._open_until_ns is None:
            return 0
        return max(0, -(-(self._open_until_ns - self._clock.now_ns()) // NS_PER_MS))

    def begin(self) -> None:
        """An attempt passes; `success`, `failure` or `forget` must follow."""
        if self.state is BreakerState.HALF_OPEN:
            self._probe_in_flight = True

    def success(self) -> None:
        if self._open_until_ns is not None:
            self._open_until_ns = None
            self._probe_in_flight = False
            self._cool_down_ms = COOL_DOWN_MS
            self._attempts.clear()
            self._num_failures = 0
        self._note(False)

    def failure(self) -> None:
        self._note(True)
        if self._open_until_ns is not None:
            if self.state is BreakerState.HALF_OPEN:
                self._cool_down_ms = min(2 * self._cool_down_ms, MAX_COOL_DOWN_MS)
                self._open()
            return
        num_attempts = len(self._attempts)
        if num_attempts >= MIN_ATTEMPTS and self._num_failures >= FAILURE_SHARE * num_attempts:
            self._open()

    def forget(self) -> None:
        """The attempt ended in a way that says nothing about the upstream."""
        self._probe_in_flight = False

    def _open(self) -> None:
        # Jitter: gateways that saw the same fault must not probe in step.
        cool_down_ms = self._uniform(self._cool_down_ms / 2, self._cool_down_ms)
        self._open_until_ns = self._clock.now_ns() + int(cool_down_ms * NS_PER_MS)
        self._probe_in_flight = False

    def _note(self, failed: bool) -> None:
        now_ns = self._clock.now_ns()
        self._attempts.append((now_ns, failed))
        self._num_failures += failed
        while self._attempts and self._attempts[0][0] < now_ns - WINDOW_NS:
            _, was_failure = self._attempts.popleft()
            self._num_failures -= was_failure
