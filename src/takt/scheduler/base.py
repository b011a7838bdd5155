"""The scheduler: what each step computes. Policies give the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from takt.errors import InvalidRequestError, InvariantError
from takt.kvcache.manager import KVCacheManager, PrefixHit
from takt.scheduler.decode_batch import DecodeBatch
from takt.scheduler.decoding import DecodeScheduler
from takt.scheduler.ending import new_sibling, stop_reason
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.output import FinishedRequest, ScheduledRequest, SchedulerOutput
from takt.scheduler.request import Request, RequestStatus
from takt.scheduler.reservation import KVReservation
from takt.scheduler.retirement import Retirement
from takt.scheduler.running_set import RunningSet
from takt.scheduler.step_builder import StepBuilder, num_rows, samples_at
from takt.scheduler.step_time import StepFeatures
from takt.scheduler.validation import check_request
from takt.scheduler.waiting_queue import WaitingQueue


class Scheduler(ABC):
    """Owns requests from `add` to their end. A step is `schedule`, run, `update`, in this order.

    Decodes go first, then prompts that run, then those that wait, in the policy's order and without
    overtaking. `schedule` may run up to `max_steps_in_flight` steps ahead of `update`: a token that
    is not known yet counts in `num_in_flight_tokens`. Blocks that a step in flight touches go back
    to the pool when that step is updated, whatever became of the request.

    `reserves_output` admits a request only if its whole future fits beside those of all that run;
    otherwise the last in order is preempted when blocks run out, and computed again later.
    """

    def __init__(
        self, limits: SchedulerLimits, kv: KVCacheManager, *, reserves_output: bool
    ) -> None:
        self._limits = limits
        self._kv = kv
        self._reserves_output = reserves_output
        self._reservation = KVReservation(kv, limits, reserves_output=reserves_output)
        self._live: dict[str, dict[int, Request]] = {}
        self._waiting = WaitingQueue()
        self._running = RunningSet()
        self._prompts = RunningSet()
        """Those that run and lack more than their newest token."""
        secure_block = None if reserves_output else self._secure_block
        self._decoding = DecodeScheduler(kv, limits, secure_block)
        self._num_seats_taken = 0
        self._retirement = Retirement(kv, self._reservation)
        self._num_added = 0
        self._last_scheduled_step = -1
        self._waits_for_capacity = False
        self.depth = limits.max_steps_in_flight
        """Steps that are to be in flight, at most that limit; a pipeline's micro-batches."""
        self.prefix_cache_queries = 0
        """Prompt tokens looked up in the prefix cache so far, each request once; hits likewise."""
        self.prefix_cache_hits = 0
        self.num_preemptions = 0

    # -- policy -------------------------------------------------------------------------------
    @abstractmethod
    def policy_key(self, request: Request) -> tuple[int, ...]:
        """A request's place; smaller goes first, equal ones in the order of `add`."""

    @abstractmethod
    def may_displace(self, waiting: Request, running: Request) -> bool:
        """Whether `waiting` is worth preempting `running`; never asked with reserved output."""

    def observe(self, features: StepFeatures, duration_ns: int, end_ns: int) -> None:  # noqa: B027
        """Told of each step after its `update`: what it did, how long it took, when it ended."""

    # -- requests -----------------------------------------------------------------------------
    def add(self, request: Request) -> None:
        """Queues a request; raises `InvalidRequestError` if it can never be served."""
        if request.request_id in self._live:
            raise InvalidRequestError(
                f"request_id {request.request_id!r} is in use; give each request its own"
            )
        request.max_computed_tokens = request.num_prompt_tokens + max(request.max_tokens, 1) - 1
        request.pending_choices = list(range(1, request.sampling.n))
        check_request(request, self._limits, self._reservation)
        request.order_key = (*self.policy_key(request), self._num_added, request.choice)
        self._num_added += 1
        num_given = request.num_given_tokens if self._limits.phases_differ else None
        request.prefix = self._kv.prefix_chain((request.cache_salt,), num_given)
        self._live[request.request_id] = {request.choice: request}
        self._waiting.push(request)

    def abort(self, request_id: str, choice: int | None = None) -> list[Request]:
        """Ends a request, or one choice of it; returns what this ended, choices not begun too.

        Unknown and ended ones are no error. A choice that shares its prompt's computation leaves it
        to its siblings.
        """
        live = self._live.get(request_id, {})
        ended: list[Request] = []
        for request in list(live.values()):
            unborn = request.pending_choices
            gone = [c for c in unborn if choice in (None, c)]
            for sibling in gone:
                unborn.remove(sibling)
                self._num_seats_taken -= request in self._running
                ended.append(new_sibling(request, sibling, RequestStatus.FINISHED))
            if choice in (None, request.choice):
                if unborn:
                    self._begin_again(request)
                self._end(request)
                ended.append(request)
        return ended

    # -- steps --------------------------------------------------------------------------------
    def schedule(self, now_ns: int) -> SchedulerOutput:
        """Decides the next step; an empty one is not to be run or updated.

        With nothing in flight a step is empty only if there is no work.
        """
        step = StepBuilder(self._last_scheduled_step + 1, self._limits)
        if step.step_id - self._retirement.last_updated_step > self._limits.max_steps_in_flight:
            raise InvariantError(f"over {self._limits.max_steps_in_flight} steps in flight")
        self._running.sort()
        if not self._reserves_output:
            self._displace(step)
        self._decoding.schedule(step, self._limits.micro_batch(len(self._running), self.depth))
        self._schedule_prompts(step, self._known_prompts(), now_ns)
        if not step.is_empty:
            self._last_scheduled_step = step.step_id
        return SchedulerOutput(
            step_id=step.step_id,
            batch=step.batch,
            batch_step=step.batch_step,
            begins_block=step.begins_block,
            num_decode_kv_tokens=step.num_decode_kv_tokens,
            prompts=step.prompts,
            num_prefill_tokens=step.num_prefill_tokens,
            block_copies=[] if step.is_empty else self._kv.take_copies(),
            preempted=step.preempted,
        )

    def update(self, output: SchedulerOutput, token_ids: Sequence[int]) -> list[FinishedRequest]:
        """Takes the tokens of the oldest step in flight; returns the requests that ended by it.

        `token_ids` has one entry for each request and fork that the step sampled for, in the order
        of its rows; those of requests that have ended meanwhile are dropped here.
        """
        num_sampled = len(output.batch.requests)
        if not num_sampled and not output.prompts:
            return []
        self._retirement.begin_update(output.step_id)
        finished: list[FinishedRequest] = []
        for item in output.prompts:
            num_sampled += item.samples + len(item.forks)
            self._end_chunk(item, finished)
        if num_sampled != len(token_ids):
            raise InvariantError(
                f"step {output.step_id} samples {num_sampled} tokens, {len(token_ids)} came"
            )
        for request, token_id in self._decoding.take(output, token_ids):
            self._end_if_over(request, token_id, finished)
        self._retirement.end_step()
        return finished

    # -- state --------------------------------------------------------------------------------
    def is_whole(self, batch: DecodeBatch) -> bool:
        """Whether all of a step's decodes still run; False too if others have joined them."""
        return batch is self._decoding.decodes.current

    def occupancy(self) -> tuple[int, int, int]:
        """`num_running`, `num_waiting` and `num_waiting_for_capacity`: waiting requests if it is
        blocks or seats that the first lacks; 0 if a step's tokens."""
        num_waiting = len(self._waiting)
        return len(self._running), num_waiting, num_waiting if self._waits_for_capacity else 0

    @property
    def has_work(self) -> bool:
        return bool(self._running) or len(self._waiting) > 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_blocks_used(self) -> int:
        return self._kv.num_used_blocks

    @property
    def kv_blocks_total(self) -> int:
        return self._kv.num_total_blocks

    def kv_unwritten_share(self, num_in_flight_tokens: int) -> float:
        """Share of the fullest pool that is reserved and not written, 0 to 1."""
        return self._reservation.unwritten_share(num_in_flight_tokens)

    # -- one step -----------------------------------------------------------------------------
    def _known_prompts(self) -> list[Request]:
        """Those that run and have known tokens to compute, in order."""
        if not self._prompts:
            return []
        self._prompts.sort()
        return [r for r in self._prompts if r.num_computed_tokens < len(r.token_ids)]

    def _schedule_prompts(self, step: StepBuilder, prefills: list[Request], now_ns: int) -> None:
        """Prompts that run, then those that wait; policies with another order override it."""
        self._schedule_prefills(step, prefills)
        self._schedule_waiting(step, now_ns)

    def _schedule_prefills(self, step: StepBuilder, prefills: list[Request]) -> None:
        for request in prefills:
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted by a decode of this step
            num_tokens = step.chunk(request, request.num_computed_tokens)
            if num_tokens:
                self._compute(request, num_tokens, step)

    def _schedule_waiting(self, step: StepBuilder, now_ns: int) -> None:
        self._waits_for_capacity = False
        while step.num_tokens_left > 0 and (request := self._waiting.peek()) is not None:
            hit = None if step.is_starved else self._fit(request)
            if hit is None:
                self._waits_for_capacity = True
                return
            num_tokens = step.chunk(request, hit.num_tokens)
            if num_tokens == 0:
                return
            self._waiting.pop()
            self._admit(request, hit, now_ns)
            self._compute(request, num_tokens, step)

    def _compute(self, request: Request, num_tokens: int, step: StepBuilder) -> None:
        """Schedules known tokens; the last of a prompt's makes its siblings."""
        start = request.num_computed_tokens
        end = start + num_tokens
        rows = num_rows(request, start, num_tokens)
        request.num_slots = self._kv.append(request, end)
        samples = samples_at(request, end)
        request.num_computed_tokens = end
        request.last_step_id = step.step_id
        request.num_in_flight_tokens += samples
        forks = self._fork(request) if samples and request.pending_choices else ()
        step.add_prefill(ScheduledRequest(request, start, num_tokens, samples, forks), rows)
        # The newest token is on the way, or it is what a preempted sequence still lacks.
        if samples or (end == len(request.token_ids) - 1 and end >= request.num_prompt_tokens):
            del self._prompts[request]
            for one in (request, *forks):
                self._decoding.join(one)

    def _fork(self, parent: Request) -> list[Request]:
        children = [
            new_sibling(parent, choice, RequestStatus.RUNNING) for choice in parent.pending_choices
        ]
        parent.pending_choices = []
        parent.num_slots = 0
        for child in children:
            self._kv.fork(parent, child, child.prefix)
            self._live[child.request_id][child.choice] = child
            self._insert_running(child)
        self._reservation.fork(parent, children)
        return children

    # -- admission and preemption -------------------------------------------------------------
    def _fit(self, request: Request) -> PrefixHit | None:
        """The prefix to share if seats and blocks for the request are there, else None."""
        num_seats = 1 + len(request.pending_choices)
        if self._num_seats_taken + num_seats > self._limits.max_num_seqs:
            return None
        if self._kv.has(request):
            return None  # preempted, and a step in flight still touches its blocks
        return self._reservation.fit(request, use_prefix=not request.lacks_scores)

    def _admit(self, request: Request, hit: PrefixHit, now_ns: int) -> None:
        self._kv.create(request, request.prefix, hit)
        self._reservation.admit(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit.num_tokens
        self._num_seats_taken += 1 + len(request.pending_choices)
        self._prompts.insert(request)
        self._insert_running(request)
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = now_ns
            request.num_cached_tokens = hit.num_tokens
            self.prefix_cache_queries += request.num_prompt_tokens
            self.prefix_cache_hits += hit.num_tokens

    def _insert_running(self, request: Request) -> None:
        self._running.insert(request)

    def _leave_running(self, request: Request) -> None:
        del self._running[request]
        self._prompts.pop(request, None)
        self._decoding.leave(request)
        self._num_seats_taken -= 1 + len(request.pending_choices)

    def _secure_block(self, request: Request, step: StepBuilder) -> bool:
        """Takes the block that a decode may need, from the last in order if there is none."""
        num_tokens = request.num_computed_tokens + 1
        if step.is_starved:
            return self._kv.num_new_blocks(request, num_tokens) == 0
        while not self._reservation.take(request, num_tokens):
            if self._retirement.is_pending:
                step.is_starved = True  # blocks come back with a step in flight
                return False
            victim = self._victim(request, step)
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _victim(self, request: Request, step: StepBuilder) -> Request:
        """Whom to preempt when `request` lacks a block: nobody that this step has scheduled."""
        return next(reversed(self._running))

    def _displace(self, step: StepBuilder) -> None:
        """Makes room for the first that waits, where the policy puts it before those that run."""
        request = self._waiting.peek()
        if request is None:
            return
        while self._running and not self._retirement.is_pending:
            victim = next(reversed(self._running))
            if not self.may_displace(request, victim) or self._fit(request) is not None:
                return
            self._preempt(victim, step)

    def _preempt(self, request: Request, step: StepBuilder) -> None:
        """Takes a sequence's blocks; its tokens stay, those on the way included."""
        self._leave_running(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._retirement.retire(request)
        self._waiting.push(request)
        step.preempted.append(request)

    # -- ends ---------------------------------------------------------------------------------
    def _end_chunk(self, item: ScheduledRequest, finished: list[FinishedRequest]) -> None:
        request, end = item.request, item.start + item.num_tokens
        self._kv.commit(request, request.token_ids, end)
        num_prompt = request.num_prompt_tokens
        request.num_scored_tokens = max(request.num_scored_tokens, min(end, num_prompt))
        if item.samples:
            self._reservation.end_prefill(request)
        for fork in item.forks:
            self._kv.commit(fork, request.token_ids, end)
        is_scored = request.max_tokens == 0 and end == num_prompt
        if is_scored and request.status is not RequestStatus.FINISHED:
            unborn = [
                new_sibling(request, choice, RequestStatus.FINISHED)
                for choice in request.pending_choices
            ]
            self._end(request)
            finished += [FinishedRequest(one, "length", None) for one in (request, *unborn)]

    def _end_if_over(
        self, request: Request, token_id: int, finished: list[FinishedRequest]
    ) -> None:
        """Ends a request if its newest token, this one, is its last."""
        reason = stop_reason(request, token_id)
        if reason is not None:
            self._end(request)
            stop_token_id = token_id if reason == "stop" else None
            finished.append(FinishedRequest(request, reason, stop_token_id))

    def _end(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._leave_running(request)
            self._retirement.retire(request)
        else:
            self._waiting.discard(request)
        request.status = RequestStatus.FINISHED
        choices = self._live[request.request_id]
        if choices.get(request.choice) is request:
            del choices[request.choice]
        if not choices:
            del self._live[request.request_id]

    def _begin_again(self, request: Request) -> None:
        """Lets the first unborn sibling compute the prompt in the place of its ending parent."""
        first, *rest = request.pending_choices
        sibling = new_sibling(request, first, RequestStatus.WAITING)
        sibling.pending_choices = rest
        self._live[request.request_id][first] = sibling
        self._waiting.push(sibling)
