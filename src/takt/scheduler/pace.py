"""Deadline order, and steps as large as the streams' targets allow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from takt.errors import InvalidRequestError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.batch_growth import LEAST_CHUNK, BatchGrowth
from takt.scheduler.deadline import Deadlines
from takt.scheduler.gap_risk import HEADROOM, Bounds, GapRisk
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.load_snapshot import Job, LoadSnapshot
from takt.scheduler.prefill_budget import largest_chunk, with_chunk
from takt.scheduler.request import Request, RequestStatus
from takt.scheduler.risk_budget import LATE_SHARE, PROMISED_SHARE
from takt.scheduler.slo import SLO
from takt.scheduler.step_builder import StepBuilder, samples_at
from takt.scheduler.step_time import StepFeatures
from takt.scheduler.urgency import Prompt, PromptUrgency

PATIENCE_STEPS = 128
"""Steps in a row that may leave all prompts out. The next one takes a least chunk whatever it
costs: fewer than one gap in a hundred, so that the P99 holds even then, and no prompt starves."""

_MAX_JOBS = 256
"""Waiting prompts that a snapshot lists; a forecast beyond so many refuses in any case."""
_SHARE_GAIN = 0.02
_MAX_JUDGED = 16
"""Waiting prompts that are looked at when it is judged how urgent they are."""
_MAX_PASSED = 16
"""Waiting requests that others may pass in one step, since only their own target keeps them out."""


class PaceScheduler(Scheduler):
    """Prompts go by deadline: arrival, target of TTFT, and a term for their work; a level of
    `priority` shifts it by one target. Running sequences decode in every step. Prompts get of its
    time what keeps the gaps' P99: as much risk of a late gap is taken as the last window leaves.

    Beside decodes that leave too little of a step prompts cost too much: then they wait for the
    batch to end, if they are in time then.

    A request joins only if the decodes are in time at the peak that batch and contexts may reach
    with it. With reserved output nobody is preempted; otherwise the victim is whose computing costs
    least, and a request with a target of ITL is refused.

    Where nobody is refused, a request's own target that is tighter than the server's holds nobody
    off for long: others pass one that waits for such a target, and whose first token is overdue is
    served by the server's target alone.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVCacheManager,
        *,
        reserves_output: bool,
        predictor: LearnedStepTime,
        slo: SLO,
        refuses: bool = False,
    ) -> None:
        """`refuses`: whoever waits was promised that it will be in time."""
        super().__init__(limits, kv, reserves_output=reserves_output)
        self._predictor = predictor
        self._slo = slo
        self._output_share = 1.0
        self._refuses = refuses
        self._growth = BatchGrowth(predictor, slo.itl_ns)
        self._passed: list[Request] = []
        chunk = min(256, limits.max_num_batched_tokens)
        one = StepFeatures(0, chunk, chunk, chunk * chunk // 2)
        self._prefill_token_ns = predictor.predict_ns(one) / chunk
        self._deadlines = Deadlines(slo, self._prefill_token_ns)
        self._urgency = PromptUrgency(self._prefill_token_ns, limits.max_num_batched_tokens)
        self._last_end_ns: int | None = None
        self._num_unobserved = 0
        self._steps_without_prefill = 0
        self._targets: Counter[int] = Counter()
        """Of running sequences, all choices counted."""
        self._risk = GapRisk(predictor, PROMISED_SHARE if refuses else LATE_SHARE)
        self._decodes = StepFeatures(0, 0, 0, 0)
        self.last_bounds: Bounds = []
        """What the last step was to keep, if some stream's target bound it."""

    # -- policy -------------------------------------------------------------------------------
    def policy_key(self, request: Request) -> tuple[int, ...]:
        return (self._deadlines.order(request),)

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
        last_ns, self._last_end_ns = self._last_end_ns, end_ns
        self._num_unobserved = max(0, self._num_unobserved - 1)
        # Streams of a micro-batch have a token each time that their own step ends.
        is_own = last_ns is None or self._limits.num_micro_batches > 1
        gap_ns = duration_ns if is_own or last_ns is None else end_ns - last_ns
        num_gaps, risk = features.num_decode_seqs, self._risk
        if risk.was_pressed:
            self._urgency.observe(features, duration_ns)
        missed = risk.ended(gap_ns, end_ns, num_gaps, self._targets)
        if missed and num_gaps:
            for request in self._running:
                if request.num_output_tokens > 1 and self._deadlines.itl_ns(request) in missed:
                    risk.was_late(request, self._output_share * request.max_tokens)

    def load(self, num_taken: int, end_ns: int, *, with_jobs: bool) -> LoadSnapshot:
        """The load as it stands between two steps; `with_jobs` lists the prompts one by one."""
        model = self._predictor
        decodes = [r for r in self._running if r.num_output_tokens > 0]
        prompts = [r for r in self._running if r.num_output_tokens == 0] if with_jobs else []
        prompts += self._waiting.first(_MAX_JOBS if with_jobs else 0)
        prompts.sort(key=lambda r: r.order_key)
        error, tightest = model.error, min(self._targets, default=None)
        share = self._growth.late_share(
            self._decodes, HEADROOM * (tightest or self._slo.itl_ns or math.inf)
        )
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
            tightest_itl_ns=tightest,
            output_share=self._output_share,
            prefill_token_ns=self._prefill_token_ns,
            jobs=[self._job(request) for request in prompts],
            pieces=model.pieces,
            ratios=model.ratios,
            peak_ratio=model.ratio(share),
            least_chunk=self._growth.least_chunk(self._decodes),
            room=self._risk.room,
            mean_error=error.mean_absolute,
            covered=error.covered,
            factors=model.factors,
        )

    def _job(self, request: Request) -> Job:
        ttft_ns = request.slo.ttft_ns or self._slo.ttft_ns
        return Job(
            order_ns=request.order_key[0],
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_seqs=1 + len(request.pending_choices),
            max_tokens=max(request.max_tokens, 1),
            itl_ns=self._deadlines.itl_ns(request),
            deadline_ns=None if ttft_ns is None else request.arrival_ns + ttft_ns,
        )

    # -- one step -----------------------------------------------------------------------------
    def _schedule_prompts(self, step: StepBuilder, prefills: list[Request], now_ns: int) -> None:
        self._waits_for_capacity = False
        num_decodes, contexts = step.num_decodes, step.num_decode_kv_tokens
        self._decodes = features = StepFeatures(num_decodes, 0, contexts, contexts)
        is_pressed = bool(prefills) or len(self._waiting) > 0
        if is_pressed:
            self._relegate(prefills, now_ns)
        bounds = self._bounds(self._targets, is_pressed, now_ns)
        self.last_bounds = overdue = bounds
        if is_pressed and step.num_tokens_left > 0 and not self._waits_its_turn(prefills, now_ns):
            lifted = {self._bound(target, True) for target in self._targets}
            if lifted != self._targets.keys():
                targets = [target for target in lifted if target is not None]
                overdue = self._bounds(targets, is_pressed, now_ns)
            holds = self._holds_first_tokens(prefills, now_ns)
            features = self._fill(step, prefills, features, (bounds, overdue), now_ns, holds=holds)
            if holds and step.is_empty:
                features = self._fill(step, prefills, features, (bounds, overdue), now_ns)
            while self._passed:
                self._waiting.push(self._passed.pop())
        is_left_out = is_pressed and step.num_prefill_tokens == 0
        self._steps_without_prefill = self._steps_without_prefill + 1 if is_left_out else 0
        if not step.is_empty:
            self._num_unobserved += 1
            kept = list({bound.target_ns: bound for bound in bounds + overdue}.values())
            self._risk.made(kept, features, is_pressed=is_pressed)

    def _fill(
        self,
        step: StepBuilder,
        prefills: list[Request],
        features: StepFeatures,
        bounds: tuple[Bounds, Bounds],
        now_ns: int,
        *,
        holds: bool = False,
    ) -> StepFeatures:
        """Takes prompts in the order of deadlines, those that run and those that wait.

        The second bounds are for those that are overdue. With `holds` none samples.
        Returns what the step comes to.
        """
        running = [r for r in prefills if r.status is RequestStatus.RUNNING]
        index, takes_waiting = 0, not step.is_starved
        while step.num_tokens_left > 0:
            request = running[index] if index < len(running) else None
            waiting = self._next_waiting(now_ns) if takes_waiting else None
            hit = None
            if waiting is not None and (request is None or waiting.order_key < request.order_key):
                if not self._may_join(waiting, now_ns):
                    takes_waiting = self._let_pass(waiting)
                    self._waits_for_capacity = True
                    continue
                hit = self._fit(waiting)
                if hit is None:
                    self._waits_for_capacity, takes_waiting = True, False
                    continue
                request = waiting
            if request is None:
                break
            own = bounds[self._is_overdue(request, now_ns)]
            start = request.num_computed_tokens if hit is None else hit.num_tokens
            num_tokens = self._chunk(step, request, start, features, own)
            if holds and samples_at(request, start + num_tokens):
                num_tokens -= 1
                if num_tokens == 0 and hit is None:
                    index += 1
                    continue
            if num_tokens == 0:
                break
            if hit is None:
                index += 1
            else:
                self._waiting.pop()
                self._admit(request, hit, now_ns)
            self._compute(request, num_tokens, step)
            features = with_chunk(features, start, num_tokens)
            if own and start + num_tokens < request.num_tokens:
                break
        return features

    def _chunk(
        self,
        step: StepBuilder,
        request: Request,
        start: int,
        features: StepFeatures,
        bounds: Bounds,
    ) -> int:
        most = step.chunk(request, start)
        if not bounds or most == 0:
            return most
        fitting = largest_chunk(self._predictor, features, start, most, bounds)
        if fitting == 0 and step.num_prefill_tokens == 0:
            fitting = LEAST_CHUNK if self._steps_without_prefill >= PATIENCE_STEPS else 0
        return step.chunk(request, start, fitting) if fitting else 0

    def _waits_its_turn(self, prefills: list[Request], now_ns: int) -> bool:
        """Whether prompts leave the decodes alone until the batch ends: beside it they cost much
        more, and the first of them is in time all the same, or even sooner."""
        decodes, bounds = self._decodes, self.last_bounds
        first = self._next_waiting(now_ns)
        if prefills and (first is None or prefills[0].order_key < first.order_key):
            first = prefills[0]
        if first is None or not decodes.num_decode_seqs or not bounds:
            return False
        num_steps = self._decoding.num_steps_left * self._output_share
        alone_ns = (first.num_tokens - first.num_computed_tokens) * self._prefill_token_ns
        after_ns = num_steps * self._predictor.predict_ns(decodes) + alone_ns
        passed_ns, ttft_ns = now_ns - first.arrival_ns, self._deadlines.ttft_ns(first)
        most = self._limits.max_num_batched_tokens
        return self._growth.turn_is_better(
            first, decodes, bounds, most, after_ns=after_ns, passed_ns=passed_ns, ttft_ns=ttft_ns
        )

    def _holds_first_tokens(self, prefills: list[Request], now_ns: int) -> bool:
        """Whether no stream is to begin with this step, which has none."""
        if self._decodes.num_decode_seqs or self._num_unobserved or self._slo.itl_ns is None:
            return False
        if not self._limits.enable_chunked_prefill:  # none can lack its last token alone
            return False
        prompts = prefills + self._waiting.first(_MAX_JUDGED)
        prompts.sort(key=lambda request: request.order_key)
        num_tokens = sum([r.num_tokens for r in prompts]) // max(len(prompts), 1)
        # Who was promised a time waits for nobody beyond it.
        step_ns = None if self._refuses else self._growth.turn_step_ns(num_tokens)
        return self._urgency.holds([self._prompt(r) for r in prompts], now_ns, step_ns)

    def _prompt(self, request: Request) -> Prompt:
        ttft_ns = self._deadlines.ttft_ns(request)
        num_left = request.num_tokens - request.num_computed_tokens
        num_outputs = self._output_share * request.max_tokens
        return Prompt(num_left, request.arrival_ns + ttft_ns, ttft_ns, num_outputs)

    def _bounds(self, targets: Iterable[int], is_pressed: bool, now_ns: int) -> Bounds:
        """Of the streams that decode in this step."""
        if not self._decodes.num_decode_seqs:
            return []
        waited_ns = 0
        # With a step in flight this one begins when that ends, and so does the gap.
        if self._last_end_ns is not None and self._num_unobserved == 0:
            waited_ns = now_ns - self._last_end_ns
        return self._risk.bounds(targets, self._decodes, waited_ns, is_pressed=is_pressed)

    def _next_waiting(self, now_ns: int) -> Request | None:
        """The first that waits; those whose deadline is lost go back to stand behind others."""
        while (request := self._waiting.peek()) is not None:
            order = self._deadlines.relegated(request, now_ns)
            if order is None:
                return request
            self._waiting.pop()
            request.order_key = order
            self._waiting.push(request)
        return None

    def _relegate(self, prefills: list[Request], now_ns: int) -> None:
        """Likewise for prompts that are under way."""
        is_moved = False
        for request in prefills:
            order = self._deadlines.relegated(request, now_ns)
            if order is not None:
                request.order_key, is_moved = order, True
        if is_moved:
            prefills.sort(key=lambda request: request.order_key)
            self._running.reorder()
            self._prompts.reorder()

    # -- who runs -----------------------------------------------------------------------------
    def _may_join(self, request: Request, now_ns: int) -> bool:
        is_overdue = self._is_overdue(request, now_ns)
        tightest = min(self._targets, default=None)
        targets = (self._deadlines.itl_ns(request), tightest)
        bounds = [self._bound(target, is_overdue) for target in targets]
        target_ns = min([b for b in bounds if b is not None], default=None)
        if target_ns is None or not self._running:
            return True
        return self._growth.may_join(
            request, self._running, self._decodes, target_ns, is_overdue=is_overdue
        )

    def _let_pass(self, request: Request) -> bool:
        """Whether those behind one that may not join come in question: if it is only its own target
        that keeps it out, which binds nobody else yet."""
        own, tightest = request.slo.itl_ns, min(self._targets, default=None)
        is_its_own = own is not None and (tightest is None or own < tightest)
        if self._refuses or not is_its_own or len(self._passed) >= _MAX_PASSED:
            return False
        self._waiting.pop()
        self._passed.append(request)
        return True

    def _is_overdue(self, request: Request, now_ns: int) -> bool:
        """Whether its first token is, where it was let in without a promise."""
        return not self._refuses and self._deadlines.is_late(request, now_ns)

    def _bound(self, target_ns: int | None, is_overdue: bool) -> int | None:
        """What a target of ITL is worth against another's first token: all, or, if that is overdue,
        no more than the server's own."""
        if target_ns is None or not is_overdue or self._refuses:
            return target_ns
        return None if self._slo.itl_ns is None else max(target_ns, self._slo.itl_ns)

    def _victim(self, request: Request, step: StepBuilder) -> Request:
        """Whose computing again costs least; those that have sent no token go first."""
        return min(
            (r for r in self._running if r.last_step_id != step.step_id),
            key=lambda r: (r.num_output_tokens > 0, r.num_computed_tokens, r.order_key),
            default=request,
        )

    def _end(self, request: Request) -> None:
        self._growth.forget(request)
        if request.num_output_tokens > 0:
            share = request.num_output_tokens / request.max_tokens
            self._output_share += _SHARE_GAIN * (share - self._output_share)
        super()._end(request)

    def _insert_running(self, request: Request) -> None:
        super()._insert_running(request)
        self._growth.forget(request)
        target = self._deadlines.itl_ns(request)
        if target is not None:
            self._targets[target] += 1

    def _leave_running(self, request: Request) -> None:
        super()._leave_running(request)
        self._growth.departed()
        self._risk.leave(request)
        target = self._deadlines.itl_ns(request)
        if target is not None:
            self._targets[target] -= 1
            if not self._targets[target]:
                del self._targets[target]
