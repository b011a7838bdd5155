"""What is asked of a server: requests, their lengths, and the targets on their latency."""

from __future__ import annotations

from dataclasses import dataclass, fields

from takt.plan.errors import PlanInputError, require_positive, require_whole
from takt.plan.simulate.arrivals import LengthDistribution


@dataclass(frozen=True, slots=True)
class Workload:
    """Poisson arrivals of `requests_per_s`; lengths vary by a coefficient of variation."""

    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_variation: float = 0.0
    output_variation: float = 0.0

    def __post_init__(self) -> None:
        require_whole("--isl", self.prompt_tokens)
        require_whole("--osl", self.output_tokens)
        require_positive("--qps", self.requests_per_s)
        _ = (self.prompt, self.output)

    @property
    def prompt(self) -> LengthDistribution:
        return LengthDistribution(self.prompt_tokens, self.prompt_variation)

    @property
    def output(self) -> LengthDistribution:
        return LengthDistribution(self.output_tokens, self.output_variation)

    @property
    def longest_tokens(self) -> int:
        """Longest context that the lengths allow."""
        return self.prompt.limit + self.output.limit

    @property
    def mean_context(self) -> float:
        """Tokens that a decode attends to, averaged over a request's life."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Targets:
    """P99 limits in seconds; None is no limit. ITL is over gaps, the others over requests."""

    itl_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def from_ms(cls, itl: float | None, ttft: float | None, e2e: float | None) -> Targets:
        def seconds(value: float | None) -> float | None:
            return None if value is None else value / 1e3

        return cls(seconds(itl), seconds(ttft), seconds(e2e))

    def __post_init__(self) -> None:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        for name, value in given:
            if value is not None:
                require_positive(f"--slo-{name[:-2]}-p99-ms", value * 1e3)
        if all(value is None for _, value in given):
            raise PlanInputError(
                "no target is given; give at least one of --slo-itl-p99-ms, --slo-ttft-p99-ms "
                "and --slo-e2e-p99-ms"
            )
        if self.ttft_s is not None and self.e2e_s is not None and self.e2e_s < self.ttft_s:
            raise PlanInputError(
                f"--slo-e2e-p99-ms {self.e2e_s * 1e3:g} is below --slo-ttft-p99-ms "
                f"{self.ttft_s * 1e3:g}: a request ends no earlier than its first token; lower the "
                "latter or raise the former"
            )
