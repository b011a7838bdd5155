"""When each token reached the client, and the metrics of it."""

from __future__ import annotations

from takt.clock import Clock
from takt.observe.metrics import Metrics
from takt.server.generation import Choice, Generation, TokenEvent


class RequestStamps:
    """Stamps of one HTTP request; `arrival_ns` is when its headers had been read."""

    def __init__(
        self, generation: Generation, metrics: Metrics, clock: Clock, arrival_ns: int
    ) -> None:
        self._generation = generation
        self._metrics = metrics
        self._clock = clock
        self._arrival_ns = arrival_ns
        self._has_first = False

    def written(self, event: TokenEvent) -> None:
        """The event has just been handed to the socket (or, if not streamed, has just come)."""
        if event.token_id is None:
            return
        now_ns = self._clock.now_ns()
        choice = event.choice
        if choice.first_ns:
            gap_ns = now_ns - choice.last_ns
            self._metrics.observe_gap(gap_ns)
            if gap_ns > choice.largest_gap_ns:
                choice.largest_gap_ns = gap_ns
        else:
            choice.first_ns = now_ns
            if not self._has_first:
                self._has_first = True
                self._metrics.observe_first_token(now_ns - self._arrival_ns)
        choice.last_ns = now_ns

    def finished(self) -> None:
        self._end(None)

    def failed(self) -> None:
        self._end("error")

    def abandoned(self) -> None:
        """The client left, or does not read."""
        self._end("abort")

    def _end(self, unfinished_reason: str | None) -> None:
        for choice in self._generation.choices:
            self._observe_choice(choice, choice.finish_reason or unfinished_reason or "abort")
        self._metrics.observe_request(
            elapsed_ns=self._clock.now_ns() - self._arrival_ns,
            num_prompt_tokens=self._generation.num_prompt_tokens,
            num_generated_tokens=self._generation.num_generated_tokens,
        )

    def _observe_choice(self, choice: Choice, reason: str) -> None:
        self._metrics.observe_choice(
            num_tokens=choice.num_tokens,
            first_ns=choice.first_ns,
            last_ns=choice.last_ns,
            largest_gap_ns=choice.largest_gap_ns,
            reason=reason,
        )
