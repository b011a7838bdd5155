"""Whatever comes, and in whatever order: texts are those of solo runs and all blocks come back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedule_runner import STOP, VOCAB_SIZE, ScheduleRunner, check_texts, make_request

from takt.errors import InvalidRequestError
from takt.scheduler.request import Request
from takt.scheduler.slo import NS_PER_MS, SLO

PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=30)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(["fcfs", "priority", "pace"]),
        reservation=st.sampled_from(["full", "optimistic"]),
        chunked=st.booleans(),
        caching=st.booleans(),
        windows=st.sampled_from([(None,), (None, 6), (5,)]),
        num_blocks=st.integers(8, 30),
        num_tokens=st.integers(4, 24),
        num_rows=st.sampled_from([None, 4, 9]),
        steps=st.integers(1, 3),
        is_pipeline=st.booleans(),
        itl_ns=st.sampled_from([None, 4, 12, 40]),
        ttft_ns=st.sampled_from([None, 1, 30, 10**6]),
        phases_differ=st.booleans(),
    )
    def start(
        self,
        policy: str,
        reservation: str,
        chunked: bool,
        caching: bool,
        windows: tuple[int | None, ...],
        num_blocks: int,
        num_tokens: int,
        num_rows: int | None,
        steps: int,
        is_pipeline: bool,
        itl_ns: int | None,
        ttft_ns: int | None,
        phases_differ: bool,
    ) -> None:
        is_pace = policy == "pace"
        if not is_pace or reservation == "optimistic":
            itl_ns = None
        self.runner = ScheduleRunner(
            num_blocks=num_blocks,
            windows=windows,
            max_num_rows=num_rows,
            max_steps_in_flight=steps,
            num_micro_batches=steps if is_pipeline else 1,
            enable_prefix_caching=caching,
            kv_reservation=reservation,
            scheduling_policy=policy,
            enable_chunked_prefill=chunked or is_pace,
            max_num_batched_tokens=num_tokens,
            slo_itl_p99_ms=itl_ns and itl_ns / NS_PER_MS,
            slo_ttft_p99_ms=ttft_ns and ttft_ns / NS_PER_MS,
            phases_differ=phases_differ,
        )
        self.is_full = reservation == "full"
        self.added: list[Request] = []

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(0, 20),
        n=st.sampled_from([1, 1, 1, 2, 3, 4]),
        priority=st.sampled_from([0, 1, 2, -(2**62), 2**62]),
        salt=st.sampled_from(["", "s"]),
        stops=st.sampled_from([(), (STOP,), tuple(range(VOCAB_SIZE))]),
        min_tokens=st.integers(0, 3),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        slo=st.builds(
            SLO, st.sampled_from([None, None, 1, 6]), st.sampled_from([None, 1, 50, 10**15])
        ),
        num_generated_before=st.sampled_from([0, 0, 0, 1, 5]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        n: int,
        priority: int,
        salt: str,
        stops: tuple[int, ...],
        min_tokens: int,
        prompt_logprobs: int | None,
        slo: SLO,
        num_generated_before: int,
    ) -> None:
        request = make_request(
            f"r{len(self.added)}",
            prompt,
            max_tokens,
            arrival_ns=self.runner.now_ns,
            priority=priority,
            salt=salt,
            stops=stops,
            n=n,
            min_tokens=min(min_tokens, max_tokens),
            prompt_logprobs=prompt_logprobs,
            slo=slo,
            num_generated_before=min(num_generated_before, len(prompt) - 1),
        )
        try:
            self.runner.add(request)
        except InvalidRequestError:
            return
        self.added.append(request)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.added:
            request = data.draw(st.sampled_from(self.added))
            choice = data.draw(st.none() | st.integers(0, request.sampling.n - 1))
            self.runner.abort(request.request_id, choice)

    @precondition(lambda self: len(self.runner.in_flight) < self.runner.max_steps_in_flight)
    @rule()
    def submit(self) -> None:
        self.runner.submit()

    @precondition(lambda self: self.runner.in_flight)
    @rule()
    def complete(self) -> None:
        self.runner.complete()

    @rule(data=st.data())
    def another_depth(self, data: st.DataObject) -> None:
        most = self.runner.max_steps_in_flight
        self.runner.scheduler.depth = data.draw(st.integers(1, most))

    @rule()
    def several_steps(self) -> None:
        for _ in range(5):
            if len(self.runner.in_flight) < self.runner.max_steps_in_flight:
                self.runner.submit()
            if self.runner.in_flight:
                self.runner.complete()

    @invariant()
    def full_reservation_never_preempts(self) -> None:
        if hasattr(self, "runner") and self.is_full:
            assert self.runner.scheduler.num_preemptions == 0

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        self.runner.drain()
        check_texts(self.runner)
        for request in self.added:
            for choice in range(request.sampling.n):
                key = (request.request_id, choice)
                assert (key in self.runner.finished) != (key in self.runner.aborted)
        for end in self.runner.finished.values():
            request = end.request
            if request.sampling.prompt_logprobs is not None:
                assert request.num_scored_tokens == request.num_prompt_tokens
                assert request.num_cached_tokens == 0 or request.choice
        reservation = self.runner.scheduler._reservation
        assert reservation._table_blocks == 0
        assert not any(reservation._window_blocks)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
