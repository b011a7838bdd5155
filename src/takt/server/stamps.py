"""When each token reached the client, and the metrics of it."""

from __future__ import annotations

from takt.clock import Clock
from takt.observe.ledger.ledger import Ledger
from takt.observe.metrics import Metrics
from takt.server.generation import Choice, Generation, TokenEvent


class RequestStamps:
    """Stamps of one HTTP request; `arrival_ns` is when its headers had been read."""

    def __init__(
        self,
        generation: Generation,
        metrics: Metrics,
        ledger: Ledger,
        clock: Clock,
        arrival_ns: int,
    ) -> None:
        self._generation = generation
        self._metrics = metrics
        self._ledger = ledger
        self.now_ns = clock.now_ns
        self._arrival_ns = arrival_ns
        self._sent_ns = clock.now_ns()
        self._has_first = False
        self._is_first_in_time = False
        self._add_gap = ledger.gap
        slo = generation.slo
        self._gap_target_ns = slo.itl_ns or ledger.gap_target_ns
        self._ttft_target_ns = slo.ttft_ns or ledger.ttft_target_ns

    def written(self, event: TokenEvent, blocked_ns: int = 0) -> None:
        """The event has just been handed to the socket (or, if not streamed, has just come).

        `blocked_ns` is how long it waited for a client that did not read.
        """
        if event.token_id is None:
            return
        now_ns = self.now_ns()
        choice = event.choice
        if choice.first_ns:
            gap_ns = now_ns - choice.last_ns
            self._add_gap(gap_ns, event.step_id)
            if gap_ns > choice.largest_gap_ns:
                choice.largest_gap_ns = gap_ns
                if gap_ns > self._gap_target_ns:
                    self._late(event, now_ns, blocked_ns)
            elif gap_ns > self._gap_target_ns:
                self._late(event, now_ns, blocked_ns)
        else:
            choice.first_ns = now_ns
            if not self._has_first:
                self._first(event, now_ns, blocked_ns)
        choice.last_ns = now_ns
        choice.last_step = event.step_id

    def _late(self, event: TokenEvent, now_ns: int, blocked_ns: int) -> None:
        choice = event.choice
        choice.num_late_gaps += 1
        self._ledger.late_gap(
            choice.run.request_id,
            choice.number,
            choice.num_tokens - 1,
            choice.last_ns,
            now_ns,
            self._gap_target_ns,
            choice.last_step,
            event.step_id,
            blocked_ns,
        )

    def _first(self, event: TokenEvent, now_ns: int, blocked_ns: int) -> None:
        self._has_first = True
        ttft_ns = now_ns - self._arrival_ns
        self._is_first_in_time = ttft_ns <= self._ttft_target_ns
        self._metrics.requests_of(event.step_id).observe_first_token(ttft_ns)
        choice = event.choice
        run = choice.run
        self._ledger.first_token(
            run.request_id,
            choice.number,
            arrival_ns=self._arrival_ns,
            sent_ns=self._sent_ns,
            scheduled_ns=run.first_scheduled_ns,
            written_ns=now_ns,
            target_ns=self._ttft_target_ns,
            step=event.step_id,
            num_own_tokens=len(run.prompt.token_ids) - run.num_cached_tokens,
            blocked_ns=blocked_ns,
        )

    def cut_off(self, event: TokenEvent, blocked_ns: int) -> None:
        """The client reads too little to go on: the gap in front of the event has not ended."""
        if event.choice.first_ns and event.token_id is not None:
            self._late(event, self.now_ns(), blocked_ns)
        self.abandoned()

    def finished(self) -> None:
        num_gaps = sum(max(choice.num_tokens - 1, 0) for choice in self._generation.choices)
        num_late = sum(choice.num_late_gaps for choice in self._generation.choices)
        if self._has_first:  # a request for a prompt's score alone has no times to keep
            self._ledger.request(is_good=self._is_first_in_time and 100 * num_late <= num_gaps)
        self._end(None)

    def failed(self) -> None:
        self._end("error")

    def abandoned(self) -> None:
        """The client left, or was cut off."""
        self._end("abort")

    def _end(self, unfinished_reason: str | None) -> None:
        for choice in self._generation.choices:
            self._observe_choice(choice, choice.finish_reason or unfinished_reason or "abort")
            if choice.number == 0:
                prompt = choice.run.prompt.token_ids
                self._metrics.requests_of(choice.last_step).observe_prompt(len(prompt))
        last = max(self._generation.choices, key=lambda choice: choice.last_ns)
        elapsed_ns = self.now_ns() - self._arrival_ns
        self._metrics.requests_of(last.last_step).observe_request(elapsed_ns)

    def _observe_choice(self, choice: Choice, reason: str) -> None:
        self._metrics.requests_of(choice.last_step).observe_choice(
            num_tokens=choice.num_tokens,
            first_ns=choice.first_ns,
            last_ns=choice.last_ns,
            largest_gap_ns=choice.largest_gap_ns,
            reason=reason,
        )
