"""A model on a fake KV cache: runs what a scheduler decides and checks every read and limit."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from kv_memory import KVMemory, check_conservation, kv_spec
from takt.config import CacheOptions, SchedulerOptions
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.create import create_scheduler
from takt.scheduler.output import FinishedRequest, SchedulerOutput
from takt.scheduler.request import Request
from takt.scheduler.slo import NO_SLO, SLO
from takt.scheduler.step_time import StepFeatures
from takt.types.sampling_params import SamplingParams

VOCAB_SIZE = 7
STOP = 0
ANY = tuple(range(VOCAB_SIZE))
MAX_MODEL_LEN = 64


def next_token(salt: str, choice: int, tokens: Sequence[int]) -> int:
    """The fake model: a fixed function of everything that a token may depend on."""
    return zlib.crc32(f"{salt}{choice}".encode() + bytes(tokens)) % VOCAB_SIZE


def solo_text(request: Request) -> tuple[list[int], str]:
    """Output and finish_reason of a request that runs alone, by the model's definition."""
    tokens = list(request.prompt_token_ids)
    for count in range(1, request.max_tokens + 1):
        token = next_token(request.cache_salt, request.choice, tokens)
        tokens.append(token)
        if token in request.stop_token_ids and count > request.sampling.min_tokens:
            return tokens[len(request.prompt_token_ids) :], "stop"
    return tokens[len(request.prompt_token_ids) :], "length"


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *[2] * (length - 1)]


def make_request(
    name: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    arrival_ns: int = 0,
    priority: int = 0,
    salt: str = "",
    stops: Sequence[int] = (),
    slo: SLO = NO_SLO,
    num_generated_before: int = 0,
    **sampling: Any,
) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        max_tokens=max_tokens,
        stop_token_ids=frozenset(stops),
        arrival_ns=arrival_ns,
        priority=priority,
        cache_salt=salt,
        slo=slo,
        num_generated_before=num_generated_before,
    )


class UnitTimes:
    """A step takes one nanosecond, and one more for each sequence and token of a prompt."""

    def predict_ns(self, features: StepFeatures) -> float:
        return 1.0 + features.num_decode_seqs + features.num_prefill_tokens

    def p99_ns(self, features: StepFeatures) -> float:
        return self.predict_ns(features)

    def ratio(self, late_share: float) -> float:
        return 1.0

    def late_share(self, features: StepFeatures, limit_ns: float) -> float:
        return float(self.predict_ns(features) > limit_ns)


class ScheduleRunner:
    """A scheduler with its pool, and the steps in flight, oldest first."""

    def __init__(
        self,
        *,
        num_blocks: int | Sequence[int] = 64,
        windows: tuple[int | None, ...] = (None,),
        max_num_rows: int | None = None,
        max_steps_in_flight: int = 1,
        num_micro_batches: int = 1,
        enable_prefix_caching: bool = True,
        kv_reservation: str = "full",
        max_model_len: int = MAX_MODEL_LEN,
        phases_differ: bool = False,
        **options: Any,
    ) -> None:
        options = {"max_num_seqs": 4, "max_num_batched_tokens": 16, **options}
        self.options = SchedulerOptions(**options)
        counts = [num_blocks] * len(windows) if isinstance(num_blocks, int) else num_blocks
        self.kv = KVCacheManager(kv_spec(windows), counts, enable_prefix_caching)
        self.scheduler = create_scheduler(
            self.options,
            CacheOptions(kv_reservation=kv_reservation),
            self.kv,
            max_model_len,
            max_num_rows=max_num_rows,
            max_steps_in_flight=max_steps_in_flight,
            num_micro_batches=num_micro_batches,
            predictor=UnitTimes(),
            phases_differ=phases_differ,
        )
        self.phases_differ = phases_differ
        self.max_steps_in_flight = max_steps_in_flight
        self.max_num_rows = max_num_rows or 10**9
        self.in_flight: deque[tuple[SchedulerOutput, list[int], set]] = deque()
        self.finished: dict[tuple[str, int], FinishedRequest] = {}
        self.aborted: dict[tuple[str, int], Request] = {}
        self.first_scheduled: list[Request] = []
        self.now_ns = 0
        self._memory = KVMemory(self.kv)
        self._texts: dict[Request, list[int]] = {}

    # -- what an engine does ------------------------------------------------------------------
    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        for request in self.scheduler.abort(request_id, choice):
            key = (request.request_id, request.choice)
            assert key not in self.aborted
            assert key not in self.finished
            self.aborted[key] = request

    def submit(self) -> SchedulerOutput:
        """Schedules a step and runs it; its results wait for `complete`."""
        self.now_ns += 1
        output = self.scheduler.schedule(self.now_ns)
        if output.is_empty:
            assert self.in_flight or not self.scheduler.has_work, "work, and nothing scheduled"
            return output
        self._check_limits(output)
        sampled, written = self._run(output)
        self.in_flight.append((output, sampled, written))
        check_conservation(self.kv)
        return output

    def complete(self) -> list[FinishedRequest]:
        """Updates the oldest step in flight."""
        output, sampled, _ = self.in_flight.popleft()
        finished = self.scheduler.update(output, sampled)
        num_decodes = output.total_num_scheduled_tokens - output.num_prefill_tokens
        features = StepFeatures(num_decodes, output.num_prefill_tokens, num_decodes, num_decodes)
        self.scheduler.observe(features, 1, self.now_ns)
        for end in finished:
            key = (end.request.request_id, end.request.choice)
            assert key not in self.finished
            assert key not in self.aborted
            self.finished[key] = end
        check_conservation(self.kv)
        return finished

    def step(self) -> SchedulerOutput:
        output = self.submit()
        if not output.is_empty:
            self.complete()
        return output

    def drain(self, max_num_steps: int = 2000) -> None:
        """Runs, as many steps ahead as may be, until all is done and all blocks are back."""
        for _ in range(max_num_steps):
            while len(self.in_flight) < self.max_steps_in_flight and self.scheduler.has_work:
                if self.submit().is_empty:
                    break
            if not self.in_flight:
                break
            self.complete()
        assert not self.scheduler.has_work, "not done: somebody starves"
        assert self.kv.num_used_blocks == 0
        assert self.kv.num_sequences == 0
        assert self.kv.num_shared_tails == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0

    def text(self, name: str, choice: int = 0) -> list[int]:
        return self.finished[name, choice].request.output_token_ids

    # -- a step -------------------------------------------------------------------------------
    def _run(self, output: SchedulerOutput) -> tuple[list[int], set]:
        self._memory.copy_blocks(output.block_copies)
        in_flight = {block: owner for _, _, written in self.in_flight for block, owner in written}
        written: set[tuple[Any, str]] = set()
        inputs = []
        for item in output.scheduled:
            request, end = item.request, item.start + item.num_tokens
            text = self._texts.setdefault(request, list(request.prompt_token_ids))
            assert text[: request.num_tokens] == request.token_ids
            assert end <= len(text), "a token is computed before it is sampled"
            if request not in self.first_scheduled and request.num_preemptions == 0:
                self.first_scheduled.append(request)
            salt = request.cache_salt
            computed = self._as_computed(request, text[:end])
            for block in self._memory.write(request, salt, computed, item.start):
                owner = in_flight.get(block, request.request_id)
                assert owner == request.request_id, "a block of a step in flight was handed out"
                written.add((block, request.request_id))
            inputs.append((item, text[:end]))
        sampled = []
        for item, tokens in inputs:  # all is written before anything is read
            request = item.request
            computed = self._as_computed(request, tokens)
            self._memory.check(request, request.cache_salt, computed, item.start)
            if item.samples:
                assert len(tokens) == len(self._texts[request])
                for one in (request, *item.forks):
                    token = next_token(one.cache_salt, one.choice, tokens)
                    self._texts[one] = [*tokens, token]
                    sampled.append(token)
        return sampled, written

    def _as_computed(self, request: Request, tokens: Sequence[int]) -> Sequence[int]:
        """Tokens as the KV cache tells them apart: generated ones too, where phases differ."""
        if not self.phases_differ:
            return tokens
        num_given = request.num_given_tokens
        return [token + VOCAB_SIZE * (i >= num_given) for i, token in enumerate(tokens)]

    def _check_phases(self, output: SchedulerOutput) -> None:
        end = 0
        for item in output.scheduled:
            num_given = item.request.num_given_tokens
            assert item.start >= num_given or item.start + item.num_tokens <= num_given
            if item.start >= num_given:
                assert end < output.num_generated_tokens, "generated tokens come first"
            end += item.num_tokens

    def _check_limits(self, output: SchedulerOutput) -> None:
        items, options = output.scheduled, self.options
        if self.phases_differ:
            self._check_phases(output)
        num_tokens = sum(item.num_tokens for item in items)
        assert num_tokens == output.total_num_scheduled_tokens <= options.max_num_batched_tokens
        assert len(items) <= options.max_num_seqs
        assert len({item.request for item in items}) == len(items)
        assert all(item.num_tokens > 0 for item in items)
        assert self.scheduler.num_running <= options.max_num_seqs
        is_decode = [
            item.num_tokens == 1 and item.start >= item.request.num_prompt_tokens for item in items
        ]
        num_decodes = num_tokens - output.num_prefill_tokens
        assert all(is_decode[:num_decodes]), "decodes come first"
        rows = 0
        for item in items:
            request, end = item.request, item.start + item.num_tokens
            rows += item.samples + len(item.forks)
            num_scored = min(end, request.num_prompt_tokens) - max(
                item.start, request.num_scored_tokens
            )
            if request.sampling.prompt_logprobs is not None and num_scored > 0:
                assert item.start <= request.num_scored_tokens or self.in_flight
                rows += num_scored
                rows -= item.samples and end == request.num_prompt_tokens
        assert rows <= self.max_num_rows
        if not options.enable_chunked_prefill:
            for item in items:
                request = item.request
                end = request.num_given_tokens if self.phases_differ else request.num_prompt_tokens
                if request.num_preemptions == 0 and item.start < end:
                    assert item.start + item.num_tokens == end


def check_texts(runner: ScheduleRunner) -> None:
    """Every finished choice has the text and the end that it has alone."""
    for end in runner.finished.values():
        expected, reason = solo_text(end.request)
        assert end.request.output_token_ids == expected
        assert end.finish_reason == reason
        assert end.stop_token_id == (expected[-1] if reason == "stop" else None)
