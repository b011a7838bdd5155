"""What a client asks of the sampler and of the end of a text."""

from __future__ import annotations

import math

import msgspec

from takt.errors import InvalidRequestError

MAX_SEED = 2**64 - 1

MAX_REPETITION_PENALTY = 1e6
"""A factor on logits and, inverted, the least one: beyond, they would leave the range of fp32."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one request; names and meanings are vLLM's.

    `max_tokens=None` means the engine's default. `top_k` 0 or -1 is off. `logprobs=None` reports
    none, `0` the chosen token only, `k` the k best as well. `stop` strings are matched on text by
    whoever detokenises; the engine itself only sees `stop_token_ids` and the end-of-text ids.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_range("n", self.n, 1, None)
        _check_range("min_tokens", self.min_tokens, 0, None)
        _check_range("temperature", self.temperature, 0.0, None)
        _check_range("top_k", self.top_k, -1, None)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range(
            "repetition_penalty",
            self.repetition_penalty,
            1 / MAX_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
        )
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for name in ("max_tokens", "logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_range(name, value, 0, None)
        if self.seed is not None:
            _check_range("seed", self.seed, 0, MAX_SEED)
        for token_id, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
        if any(s == "" for s in self.stop):
            raise InvalidRequestError("stop: an empty string cannot be matched", param="stop")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}",
                param="min_tokens",
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _check_range(
    name: str, value: float, low: float, high: float | None, *, low_open: bool = False
) -> None:
    below = value <= low if low_open else value < low
    if math.isfinite(value) and not below and (high is None or value <= high):
        return
    bound = f"above {low}" if low_open else f"at least {low}"
    if high is not None:
        bound += f" and at most {high}"
    raise InvalidRequestError(f"{name} must be {bound}, got {value}", param=name)
