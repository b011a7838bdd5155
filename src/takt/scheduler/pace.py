"""Deadline order, and steps as large as the tightest stream's slack allows."""

from __future__ import annotations

from collections import Counter

from takt.errors import InvalidRequestError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.batch_peak import fits_at_peak
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.load_snapshot import Job, LoadSnapshot
from takt.scheduler.prefill_budget import largest_chunk, with_chunk
from takt.scheduler.request import Request, RequestStatus
from takt.scheduler.slo import SLO
from takt.scheduler.step_builder import StepBuilder
from takt.scheduler.step_time import StepFeatures

HEADROOM = 0.95
"""Share of an ITL target that a step may take; the rest is for the way to the client's socket."""

LEAST_CHUNK = 4
"""Tokens of a prompt that each step should have room for, beside the decodes at their peak."""

PATIENCE_STEPS = 128
"""Steps in a row that may leave all prompts out. The next one takes a least chunk whatever it
costs: fewer than one gap in a hundred, so that the P99 holds even then, and no prompt starves."""

WORK_WEIGHT = 4.0
"""A prompt stands behind later ones by so many times its own computing time: short ones, which
are many, pass a long one, but only for a while that is bounded by its length."""

RELEGATION = 4
"""A request that missed its deadline stands behind those of so many targets later: they can still
be in time, and none that comes later passes it."""

_MAX_PRIORITY = 100
_MAX_JOBS = 256
"""Waiting prompts that a snapshot lists; a forecast beyond so many refuses in any case."""
_SHARE_GAIN = 0.02
_HELD_BACK_STEPS = 32
_NO_TTFT_NS = 1_000_000_000
"""Stands in for a target of TTFT where there is none."""


def deadline_order(
    arrival_ns: int,
    ttft_ns: int | None,
    priority: int,
    num_prompt_tokens: int,
    prefill_token_ns: float,
) -> int:
    """A request's place among prompts, in nanoseconds; smaller goes first."""
    target_ns = ttft_ns or _NO_TTFT_NS
    level = min(max(priority, -_MAX_PRIORITY), _MAX_PRIORITY)
    work_ns = WORK_WEIGHT * prefill_token_ns * num_prompt_tokens
    return arrival_ns + target_ns * (1 + level) + round(work_ns)


class PaceScheduler(Scheduler):
    """Prompts go by deadline: arrival, target of TTFT, and a term for their work; a level of
    `priority` shifts it by one target. Running sequences decode in every step. What is left of the
    tightest one's time, by the predicted P99, goes to prompts.

    A request joins only if the decodes are in time at the peak that batch and contexts may reach
    with it. With reserved output nobody is preempted; otherwise the victim is whose computing costs
    least, and a request with a target of ITL is refused.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVCacheManager,
        *,
        reserves_output: bool,
        predictor: LearnedStepTime,
        slo: SLO,
    ) -> None:
        super().__init__(limits, kv, reserves_output=reserves_output)
        self._predictor = predictor
        self._slo = slo
        self._output_share = 1.0
        self._num_departures = 0
        self._held_back: tuple[Request, int] | None = None
        """Who may not join, and the departures until then."""
        self._num_held_back = 0
        chunk = min(256, limits.max_num_batched_tokens)
        one = StepFeatures(0, chunk, chunk, chunk * chunk // 2)
        self._prefill_token_ns = predictor.predict_ns(one) / chunk
        self._last_end_ns: int | None = None
        self._num_unobserved = 0
        self._steps_without_prefill = 0
        self._targets: Counter[int] = Counter()
        """Of running sequences, all choices counted; the tightest holds for the batch."""
        self.last_limit_ns: float | None = None
        """Time that the last step was allowed, if some stream's target bound it."""

    # -- policy -------------------------------------------------------------------------------
    def policy_key(self, request: Request) -> tuple[int, ...]:
        order = deadline_order(
            request.arrival_ns,
            self._ttft_ns(request),
            request.priority,
            request.num_prompt_tokens,
            self._prefill_token_ns,
        )
        return (order,)

    def may_displace(self, waiting: Request, running: Request) -> bool:
        return False

    def add(self, request: Request) -> None:
        if request.slo.itl_ns is not None and not self._reserves_output:
            raise InvalidRequestError(
                "slo.itl_ms cannot be promised where running sequences may be preempted; start the "
                "server with --kv-reservation full",
                param="slo",
            )
        super().add(request)

    def observe(self, features: StepFeatures, duration_ns: int, end_ns: int) -> None:
        self._last_end_ns = end_ns
        self._num_unobserved = max(0, self._num_unobserved - 1)

    def load(self, num_taken: int, end_ns: int, *, with_jobs: bool) -> LoadSnapshot:
        """The load as it stands between two steps; `with_jobs` lists the prompts one by one."""
        model = self._predictor
        decodes = [r for r in self._running if r.num_output_tokens > 0]
        prompts = [r for r in self._running if r.num_output_tokens == 0] if with_jobs else []
        if with_jobs:
            prompts += self._waiting.first(_MAX_JOBS)
            prompts.sort(key=lambda r: r.order_key)
        error = model.error
        return LoadSnapshot(
            num_taken=num_taken,
            end_ns=end_ns,
            is_idle=not self.has_work,
            num_decode_seqs=len(decodes),
            num_kv_tokens=sum([len(r.token_ids) for r in decodes]),
            num_left_tokens=sum([r.max_computed_tokens + 1 - len(r.token_ids) for r in decodes]),
            num_free_seats=self._limits.max_num_seqs - self._num_seats_taken,
            num_free_kv_tokens=self._reservation.num_free_tokens,
            max_num_batched_tokens=self._limits.max_num_batched_tokens,
            tightest_itl_ns=min(self._targets, default=None),
            output_share=self._output_share,
            prefill_token_ns=self._prefill_token_ns,
            jobs=[self._job(request) for request in prompts],
            pieces=model.pieces,
            ratios=model.ratios,
            mean_error=error.mean_absolute,
            covered=error.covered,
        )

    def _job(self, request: Request) -> Job:
        ttft_ns = request.slo.ttft_ns or self._slo.ttft_ns
        return Job(
            order_ns=request.order_key[0],
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_seqs=1 + len(request.pending_choices),
            max_tokens=max(request.max_tokens, 1),
            itl_ns=self._itl_ns(request),
            deadline_ns=None if ttft_ns is None else request.arrival_ns + ttft_ns,
        )

    # -- one step -----------------------------------------------------------------------------
    def _schedule_prompts(self, step: StepBuilder, prefills: list[Request], now_ns: int) -> None:
        self._waits_for_capacity = False
        num_decodes = len(step.scheduled)
        contexts = sum([item.start for item in step.scheduled]) + num_decodes
        features = StepFeatures(num_decodes, 0, contexts, contexts)
        limit_ns = self._limit_ns(num_decodes, now_ns)
        self.last_limit_ns = limit_ns
        if step.num_tokens_left > 0:
            self._fill(step, prefills, features, limit_ns, now_ns)
        is_left_out = step.num_prefill_tokens == 0 and (prefills or len(self._waiting))
        self._steps_without_prefill = self._steps_without_prefill + 1 if is_left_out else 0
        self._num_unobserved += bool(step.scheduled)

    def _fill(
        self,
        step: StepBuilder,
        prefills: list[Request],
        features: StepFeatures,
        limit_ns: float | None,
        now_ns: int,
    ) -> None:
        """Takes prompts in the order of deadlines, those that run and those that wait."""
        running = [r for r in prefills if r.status is RequestStatus.RUNNING]
        index, takes_waiting = 0, not step.is_starved
        while step.num_tokens_left > 0:
            request = running[index] if index < len(running) else None
            waiting = self._next_waiting(now_ns) if takes_waiting else None
            hit = None
            if waiting is not None and (request is None or waiting.order_key < request.order_key):
                hit = self._fit(waiting) if self._may_join(waiting) else None
                if hit is None:
                    self._waits_for_capacity, takes_waiting = True, False
                    continue
                request = waiting
            if request is None:
                return
            start = request.num_computed_tokens if hit is None else hit.num_tokens
            num_tokens = self._chunk(step, request, start, features, limit_ns)
            if num_tokens == 0:
                return
            if hit is None:
                index += 1
            else:
                self._waiting.pop()
                self._admit(request, hit, now_ns)
            self._compute(request, num_tokens, step)
            features = with_chunk(features, start, num_tokens)
            if limit_ns is not None and start + num_tokens < request.num_tokens:
                return

    def _chunk(
        self,
        step: StepBuilder,
        request: Request,
        start: int,
        features: StepFeatures,
        limit_ns: float | None,
    ) -> int:
        most = step.chunk(request, start)
        if limit_ns is None or most == 0:
            return most
        fitting = largest_chunk(self._predictor, features, start, most, limit_ns)
        if fitting == 0 and step.num_prefill_tokens == 0:
            fitting = LEAST_CHUNK if self._steps_without_prefill >= PATIENCE_STEPS else 0
        return step.chunk(request, start, fitting) if fitting else 0

    def _limit_ns(self, num_decodes: int, now_ns: int) -> float | None:
        """Time until the tightest of the streams that decode must have its token; None: no end."""
        if num_decodes == 0 or not self._targets:
            return None
        limit_ns = HEADROOM * min(self._targets)
        # With a step in flight this one begins when that ends, and so does the gap.
        if self._last_end_ns is not None and self._num_unobserved == 0:
            limit_ns -= now_ns - self._last_end_ns
        return limit_ns

    def _next_waiting(self, now_ns: int) -> Request | None:
        """The first that waits; those whose deadline has passed go back to stand behind others."""
        while (request := self._waiting.peek()) is not None:
            ttft_ns = self._ttft_ns(request)
            deadline_ns = request.arrival_ns + ttft_ns
            relegated = deadline_ns + RELEGATION * ttft_ns
            is_late = now_ns > deadline_ns and request.num_output_tokens == 0
            if not is_late or request.order_key[0] >= relegated:
                return request
            self._waiting.pop()
            request.order_key = (relegated, *request.order_key[1:])
            self._waiting.push(request)
        return None

    # -- who runs -----------------------------------------------------------------------------
    def _may_join(self, request: Request) -> bool:
        target = self._itl_ns(request)
        tightest = min(self._targets, default=target)
        if target is None or tightest is None:
            limit_ns = tightest or target
        else:
            limit_ns = min(target, tightest)
        if limit_ns is None or not self._running:
            return True
        # The peak falls only when a sequence leaves, and with what the model learns.
        held_back = (request, self._num_departures)
        if held_back == self._held_back and self._num_held_back < _HELD_BACK_STEPS:
            self._num_held_back += 1
            return False
        fits = fits_at_peak(
            self._predictor, self._running, request, LEAST_CHUNK, HEADROOM * limit_ns
        )
        self._held_back, self._num_held_back = (None if fits else held_back), 0
        return fits

    def _victim(self, request: Request, step: StepBuilder) -> Request:
        """Whose computing again costs least; those that have sent no token go first."""
        return min(
            (r for r in self._running if r.last_step_id != step.step_id),
            key=lambda r: (r.num_output_tokens > 0, r.num_computed_tokens, r.order_key),
            default=request,
        )

    def _ttft_ns(self, request: Request) -> int:
        return request.slo.ttft_ns or self._slo.ttft_ns or _NO_TTFT_NS

    def _itl_ns(self, request: Request) -> int | None:
        return self._slo.itl_ns if request.slo.itl_ns is None else request.slo.itl_ns

    def _end(self, request: Request) -> None:
        if request.num_output_tokens > 0:
            share = request.num_output_tokens / request.max_tokens
            self._output_share += _SHARE_GAIN * (share - self._output_share)
        super()._end(request)

    def _insert_running(self, request: Request) -> None:
        super()._insert_running(request)
        target = self._itl_ns(request)
        if target is not None:
            self._targets[target] += 1

    def _leave_running(self, request: Request) -> None:
        super()._leave_running(request)
        self._num_departures += 1
        target = self._itl_ns(request)
        if target is not None:
            self._targets[target] -= 1
            if not self._targets[target]:
                del self._targets[target]
