"""Whether and when a failed attempt is made again: a pure decision."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from takt.gateway.policy import RetryPolicy
from takt.gateway.states import OUTCOME_UNKNOWN, Head, State

_MAX_EXPONENT = 30


class Outcome(enum.Enum):
    """What the upstream did with an attempt that gave no answer of use."""

    NOT_EXECUTED = "not_executed"
    """It never got the request, or refused it."""
    FAILED = "failed"
    """It said that it failed."""
    UNKNOWN = "unknown"
    """It got the request; whether it was executed, nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that failed. `kind` is an `ErrorKind`, or "status"."""

    kind: str
    outcome: Outcome
    cause: str
    status: int | None = None
    retry_after_ms: int | None = None
    head: Head | None = None
    body: bytes = b""
    """The upstream's own answer, if it gave one."""


@dataclass(frozen=True, slots=True)
class Retry:
    wait_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    state: State
    cause: str


Uniform = Callable[[float, float], float]


def backoff_ms(policy: RetryPolicy, num_tries: int, uniform: Uniform) -> int:
    """The wait after `num_tries` tries, in milliseconds.

    Full jitter (uniform from zero to the exponential bound) spreads the clients of a fault evenly
    over the time that follows it; waits around the bound would come back as waves.
    """
    if policy.strategy == "fixed":
        return min(policy.base_ms, policy.cap_ms)
    if policy.strategy == "linear":
        return min(policy.base_ms * num_tries, policy.cap_ms)
    exponent = min(num_tries - 1, _MAX_EXPONENT)
    return round(uniform(0, min(policy.cap_ms, policy.base_ms * 2**exponent)))


def decide(
    policy: RetryPolicy,
    failure: Failure,
    *,
    num_tries: int,
    remaining_ms: int,
    may_repeat: bool,
    withdraw: Callable[[], bool],
    uniform: Uniform,
) -> Retry | GiveUp:
    """What follows the `num_tries`-th try.

    `remaining_ms` is the time to the caller's deadline; `may_repeat` says whether an attempt of
    unknown outcome may be made again; `withdraw` takes one retry from the budget, if it has one.
    """
    if failure.outcome is Outcome.UNKNOWN and not may_repeat:
        return GiveUp(State.FAILED_FINAL, OUTCOME_UNKNOWN)
    if not _is_retried(policy, failure):
        if failure.kind == "status":
            return GiveUp(State.FAILED_FINAL, failure.cause)
        return GiveUp(State.FAILED_RETRYABLE, failure.cause)
    if num_tries >= policy.max_tries:
        return GiveUp(State.DEAD, failure.cause)
    wait_ms = backoff_ms(policy, num_tries, uniform)
    if failure.retry_after_ms is not None:
        if failure.retry_after_ms > policy.max_retry_after_ms:
            return GiveUp(State.FAILED_RETRYABLE, "retry_after")
        # All that were refused together must not come back together.
        wait_ms = max(wait_ms, failure.retry_after_ms + round(uniform(0, policy.base_ms)))
    if wait_ms >= remaining_ms:
        return GiveUp(State.FAILED_RETRYABLE, "deadline")
    if not withdraw():
        return GiveUp(State.FAILED_RETRYABLE, "budget")
    return Retry(wait_ms)


def _is_retried(policy: RetryPolicy, failure: Failure) -> bool:
    if failure.kind == "status":
        return failure.status in policy.retry_statuses
    return failure.kind in policy.retry_errors


def status_outcome(status: int) -> Outcome:
    """What a status says about execution: a proxy's 502 and 504 leave it open."""
    if status in (408, 425, 429, 503):
        return Outcome.NOT_EXECUTED
    if status in (502, 504):
        return Outcome.UNKNOWN
    return Outcome.FAILED
