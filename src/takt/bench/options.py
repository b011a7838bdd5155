"""What to send, how, and what to report. A field's metadata is its flag's help."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from takt.config import check_choices
from takt.errors import ConfigError


def _option(default: Any, help_text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """One run of the load generator."""

    endpoint: str = _option("completions", "completions or chat.", choices=("completions", "chat"))
    model: str | None = _option(None, "Name in the requests; the server's first if not given.")
    api_key: str | None = _option(None, "Bearer token; OPENAI_API_KEY if not given.")
    num_requests: int | None = _option(
        None,
        "Requests to measure; 100, or all of the trace, if not given.",
        short=("-n",),
    )
    num_warmup_requests: int = _option(1, "Requests sent before, and not measured.")
    concurrency: int = _option(
        1, "Closed loop: streams that send a request as soon as one ends.", short=("-c",)
    )
    qps: float | None = _option(None, "Open loop: requests per second, Poisson.")
    trace: str | None = _option(
        None, "Open loop: a JSONL file with arrival_s, num_prompt_tokens and num_output_tokens."
    )
    prompt_tokens: int = _option(400, "Tokens of a prompt; exact if the server has /tokenize.")
    output_tokens: int = _option(128, "Tokens of an answer.")
    ignore_eos: bool = _option(True, "Ask for exactly output_tokens; not every server knows it.")
    temperature: float = _option(0.0, "0 is greedy.")
    num_prefixes: int = _option(0, "Prompts begin with one of so many shared prefixes.")
    prefix_tokens: int = _option(0, "Tokens of a shared prefix, a part of prompt_tokens.")
    long_prompt_every: int = _option(0, "Every n-th prompt is a long one; 0 is none.")
    long_prompt_tokens: int = _option(2000, "Tokens of a long prompt.")
    seed: int | None = _option(
        None,
        "Prompts and arrivals are equal for equal seeds; drawn if not given, since a server's "
        "prefix cache knows the prompts of an earlier run.",
    )
    timeout: float = _option(600.0, "Seconds a request may take.")
    goodput: tuple[str, ...] = _option(
        (),
        "Target such as ttft:200, tpot:10, itl:20 (P99 of the request's own gaps), gap:50 "
        "(its largest) or e2e:3000, in ms; may be given several times.",
    )
    json: str | None = _option(None, "File for the results as JSON; - is standard output.")
    html: str | None = _option(None, "File for a report with plots.")
    label: str = _option("", "Title of the report.")

    def __post_init__(self) -> None:
        check_choices(self)
        for name in (
            "num_requests",
            "concurrency",
            "prompt_tokens",
            "output_tokens",
            "long_prompt_tokens",
        ):
            _require(self, name, 1)
        for name in ("num_warmup_requests", "num_prefixes", "prefix_tokens", "long_prompt_every"):
            _require(self, name, 0)
        if self.timeout <= 0:
            raise ConfigError(f"--timeout must be above 0, got {self.timeout}")
        if self.qps is not None and not (math.isfinite(self.qps) and self.qps > 0):
            raise ConfigError(f"--qps must be above 0, got {self.qps}")
        if self.qps is not None and self.trace is not None:
            raise ConfigError("--qps and --trace exclude each other: a trace has its own arrivals")
        if self.is_open_loop and self.concurrency != 1:
            raise ConfigError(
                f"--concurrency {self.concurrency} is a closed loop, and --qps or --trace an open "
                "one: give one of them"
            )
        if (self.num_prefixes == 0) != (self.prefix_tokens == 0):
            raise ConfigError("--num-prefixes and --prefix-tokens are given together or not at all")
        if self.num_prefixes and self.prefix_tokens >= self.prompt_tokens:
            raise ConfigError(
                f"--prefix-tokens {self.prefix_tokens} must be less than --prompt-tokens "
                f"{self.prompt_tokens}: each prompt has a part of its own"
            )

    def with_seed(self) -> BenchOptions:
        """Draws a seed if none was given."""
        if self.seed is not None:
            return self
        return replace(self, seed=secrets.randbits(32))

    @property
    def is_open_loop(self) -> bool:
        return self.qps is not None or self.trace is not None


def _require(options: BenchOptions, name: str, least: int) -> None:
    value = getattr(options, name)
    if value is not None and value < least:
        raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
