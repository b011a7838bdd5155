"""Whether prompts are short of time, and whether streams should wait for them.

A stream that has begun allows small pieces of prompts only, each in a step that pays for the
stream's weights again. While none runs, prompts go at full speed. So where prompts would come too
late beside streams, those that are done but for their last token wait for them, as long as their
own target of TTFT leaves time; then they begin together, and share their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from takt.scheduler.step_time import StepFeatures

_GAIN = 0.02
_FULL_STEPS = 2.0
"""Time that is left before a deadline, in full steps: the one that is made, and a disturbance."""
_SPARE = 0.05
"""Of a target of TTFT, for the way to the client."""
_FIRST_GUESS = 3.0
"""What a token costs beside streams, in terms of one alone, before any was seen."""


class Prompt(NamedTuple):
    num_left: int
    """Tokens that are not computed; the last one begins a stream."""
    deadline_ns: int
    ttft_ns: int


class PromptUrgency:
    """Judges, and learns what prompts cost beside streams."""

    def __init__(self, prefill_token_ns: float, max_num_tokens: int) -> None:
        """Cost of a token at full speed, and how many a step holds."""
        self._token_ns = prefill_token_ns
        self._max_num_tokens = max_num_tokens
        self._step_ns = _FIRST_GUESS * prefill_token_ns
        self._step_tokens = 1.0

    def observe(self, features: StepFeatures, duration_ns: int) -> None:
        """Takes a step for which prompts waited."""
        if features.num_decode_seqs:
            self._step_ns += _GAIN * (duration_ns - self._step_ns)
            self._step_tokens += _GAIN * (features.num_prefill_tokens - self._step_tokens)
        elif features.num_prefill_tokens >= self._max_num_tokens // 2:
            cost = duration_ns / features.num_prefill_tokens
            self._token_ns += _GAIN * (cost - self._token_ns)

    def holds(self, prompts: Sequence[Prompt], now_ns: int, batch_ns: float = 0.0) -> bool:
        """Whether first tokens wait: some prompt would be late beside streams, and none that the
        next step could finish has to be. `prompts` are in the order in which they are computed.

        Where all are late, one more is waited for as long as that costs those who are done, all
        together, less than it would cost the one to wait for their batch, `batch_ns`.
        """
        num_done = max(sum([prompt.num_left <= 1 for prompt in prompts]), 1)
        reserve_ns = _FULL_STEPS * self._max_num_tokens * self._token_ns
        beside_ns = self._step_ns / max(self._step_tokens, 1e-3)
        num_ahead, is_short = 0, False
        for num_left, deadline_ns, ttft_ns in prompts:
            slack_ns = deadline_ns - now_ns - _SPARE * ttft_ns
            alone_ns = num_left * self._token_ns
            if num_left > 1:
                if slack_ns < alone_ns:  # too late in any case
                    is_short = is_short or num_done * alone_ns < batch_ns
                    continue
                num_ahead += num_left
                is_short = is_short or num_ahead * beside_ns > slack_ns
            if num_left <= self._max_num_tokens and 0 <= slack_ns - alone_ns < reserve_ns:
                return False
        return is_short
