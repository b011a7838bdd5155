"""Whether prompts are short of time, and whether streams should wait for them.

A stream that has begun allows small pieces of prompts only, each in a step that pays for the
stream's weights again. While none runs, prompts go at full speed. So where prompts would come too
late beside streams, those that are done but for their last token wait for them, as long as their
own target of TTFT leaves time; then they begin together, and share their steps.

Where a token of a prompt costs so much beside streams that prompts wait for a batch's end, they
also wait for one more as long as that is a short wait against the one's for them: small batches
would not keep up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from takt.scheduler.step_time import StepFeatures

_GAIN = 0.02
_FULL_STEPS = 3.0
"""Time that is left before a deadline, in full steps: the one that is made, the one with which
streams begin, and a disturbance."""
_SPARE = 0.1
"""Of a target of TTFT, for slower steps than expected and the way to the client."""
_WORTH = 2.0
"""What a wait for the batch's end is worth against waits of those in it: others may come who wait
for it too."""
_FIRST_GUESS = 3.0
"""What a token costs beside streams, in terms of one alone, before any was seen."""


class Prompt(NamedTuple):
    num_left: int
    """Tokens that are not computed; the last one begins a stream."""
    deadline_ns: int
    ttft_ns: int
    num_outputs: float
    """Tokens that it is expected to stream."""


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

    def holds(
        self, prompts: Sequence[Prompt], now_ns: int, step_ns: Callable[[int], float] | None = None
    ) -> bool:
        """Whether first tokens wait: those of prompts that are done, or are with the next step.

        `prompts` are in the order in which they are computed. `step_ns` is the step of so many
        streams for whose end prompts would wait; None where prompts are computed beside them.
        """
        token_ns, room = self._token_ns, self._max_num_tokens
        done: list[Prompt] = []
        rest: list[Prompt] = []
        for prompt in prompts:
            is_done = prompt.num_left <= 1
            if not is_done:
                room -= prompt.num_left
            (done if is_done or room >= 0 else rest).append(prompt)
        if not done or not rest:
            return bool(rest)
        if step_ns is not None:
            batch_ns = max([prompt.num_outputs for prompt in done]) * step_ns(len(done))
            if len(done) * rest[0].num_left * token_ns < _WORTH * batch_ns:
                return True
        reserve_ns = _FULL_STEPS * self._max_num_tokens * token_ns
        for num_left, deadline_ns, ttft_ns, _ in done:
            slack_ns = deadline_ns - now_ns - _SPARE * ttft_ns
            if 0 <= slack_ns - num_left * token_ns < reserve_ns:
                return False
        beside_ns = self._step_ns / max(self._step_tokens, 1e-3)
        num_ahead = 0
        for num_left, deadline_ns, ttft_ns, _ in rest:
            slack_ns = deadline_ns - now_ns - _SPARE * ttft_ns
            if slack_ns < num_left * token_ns:
                continue  # too late in any case
            num_ahead += num_left
            if num_ahead * beside_ns > slack_ns:
                return True
        return False
