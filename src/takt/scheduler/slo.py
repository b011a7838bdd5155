"""Targets of latency: what a server promises, and what a request asks for itself."""

from __future__ import annotations

from dataclasses import dataclass

from takt.config import MAX_TARGET_MS

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class SLO:
    """P99 targets in nanoseconds; None promises nothing.

    `itl_ns` is over all gaps between tokens in a window, `ttft_ns` over requests.
    """

    itl_ns: int | None = None
    ttft_ns: int | None = None

    @classmethod
    def from_ms(cls, itl_ms: float | None, ttft_ms: float | None) -> SLO:
        return cls(ms_to_ns(itl_ms), ms_to_ns(ttft_ms))

    @property
    def is_given(self) -> bool:
        return self.itl_ns is not None or self.ttft_ns is not None

    def within(self, default: SLO) -> SLO:
        """These targets, and the default's where there is none."""
        return SLO(
            default.itl_ns if self.itl_ns is None else self.itl_ns,
            default.ttft_ns if self.ttft_ns is None else self.ttft_ns,
        )


NO_SLO = SLO()


def ms_to_ns(value_ms: float | None) -> int | None:
    """Whole nanoseconds, at least 1."""
    return None if value_ms is None else max(1, round(value_ms * NS_PER_MS))


def is_target_ms(value_ms: float) -> bool:
    """Whether a number can be a target: above 0, and short of what promises nothing."""
    return 0 < value_ms < MAX_TARGET_MS
