"""The engine core: requests in, one step at a time, outputs and the step's record out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from takt.clock import Clock
from takt.engine.messages import (
    IN_OUTPUTS,
    AddRequest,
    PipelineInfo,
    RequestOutput,
    StepStats,
    TokenLogprob,
)
from takt.engine.requests import RequestRules
from takt.engine.runner import Runner, StepTokens
from takt.engine.sizing import EngineSizes
from takt.engine.step_report import StepEnd, StepReporter
from takt.errors import EngineDeadError, InvalidRequestError, InvariantError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.base import Scheduler
from takt.scheduler.decode_batch import DecodeBatch
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.load_snapshot import LoadSnapshot
from takt.scheduler.output import FinishedRequest
from takt.scheduler.pace import PaceScheduler
from takt.scheduler.pipeline_depth import PipelineDepth
from takt.scheduler.request import Request, RequestStatus
from takt.scheduler.step_time import StepFeatures

_STEPS_PER_LOAD = 64


class StepResult:
    """What a step brought."""

    __slots__ = ("_make_stats", "_stats", "batch", "is_plain", "outputs", "token_ids")

    def __init__(
        self,
        outputs: list[RequestOutput],
        make_stats: Callable[[], StepStats] | None,
        batch: DecodeBatch | None = None,
        token_ids: Sequence[int] = (),
        *,
        is_plain: bool = False,
    ) -> None:
        self.outputs = outputs
        """All but plain tokens."""
        self._make_stats = make_stats
        self._stats: StepStats | None = None
        self.batch = batch
        """The sequences that decoded, if any did."""
        self.token_ids = token_ids
        """The token of each of them; `IN_OUTPUTS` where there is more to say, or nobody to hear."""
        self.is_plain = is_plain
        """Whether nobody got a first or a last token, and nobody waits."""

    @property
    def stats(self) -> StepStats | None:
        """The step's record, made now if it was not asked for before; None if no step was completed
        and these are aborts and refusals alone. To be asked for before the next step's."""
        if self._make_stats is not None:
            self._stats, self._make_stats = self._make_stats(), None
        return self._stats

    def all_outputs(self) -> list[RequestOutput]:
        """The plain tokens too, as outputs."""
        if self.batch is None:
            return self.outputs
        return [
            RequestOutput(request.request_id, request.choice, [token_id])
            for request, token_id in zip(self.batch.requests, self.token_ids, strict=True)
            if token_id != IN_OUTPUTS
        ] + self.outputs


class EngineCore:
    """One thread owns it; it knows no socket and no process.

    `add` and `abort` never fail: what they bring comes with the next `step`, in its outputs.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        rules: RequestRules,
        sizes: EngineSizes,
        num_threads: int,
        precision: str,
        clock: Clock,
        on_close: Callable[[], None],
        step_time: LearnedStepTime | None = None,
        step_times: str = "",
        refuses: bool = False,
        sentinels: Sequence[int] = (),
        ending: Callable[[], str],
        pipeline: PipelineInfo | None = None,
        depth: PipelineDepth | None = None,
        kv: KVCacheManager,
    ) -> None:
        """`depth` decides how many steps are in flight; None keeps the scheduler's."""
        self._scheduler = scheduler
        self._kv = kv
        self._runner = runner
        self._rules = rules
        self.sizes = sizes
        self.num_threads = num_threads
        self.precision = precision
        self.step_times = step_times
        """What is known of the length of steps, in one line; "" where time is not modelled."""
        self._clock = clock
        self._on_close = on_close
        self._step_time = step_time
        self._reporter = StepReporter(scheduler, kv)
        self._was_idle = True
        """There was no work since the step before: what passed since then was no step's time."""
        self._pace = scheduler if isinstance(scheduler, PaceScheduler) else None
        self._refuses = refuses
        self._num_taken = 0
        self.sentinels = sentinels
        """Readable once a process that steps need has ended: no step can be run any more."""
        self.ending = ending
        """Which process that was, and how it ended."""
        self.pipeline = pipeline
        self._depth = depth
        self._outputs: list[RequestOutput] = []
        """What happened since the last step."""
        self._schedule_starts: list[int] = []
        """Of the steps in flight, oldest first."""

    @property
    def rules(self) -> RequestRules:
        return self._rules

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._outputs) or self._runner.num_in_flight > 0 or self._scheduler.has_work

    def watch_gc(self, total_ns: Callable[[], int]) -> None:
        """Where the time that garbage collection has taken in this process so far is read."""
        self._reporter.total_gc_ns = total_ns

    def add(self, request: AddRequest) -> None:
        """Queues a request; one that can never be served is answered with an error."""
        self._was_idle = self._was_idle or not self.has_work
        self._num_taken += 1
        try:
            self._scheduler.add(self._rules.resolve(request, self._clock.now_ns()))
        except InvalidRequestError as error:
            self._outputs.append(
                RequestOutput(
                    request.request_id,
                    0,
                    [],
                    finish_reason="error",
                    error=str(error),
                    error_param=error.param,
                    error_code=error.code,
                )
            )

    def abort(self, request_ids: Iterable[str], choice: int | None = None) -> None:
        """Ends requests, or one choice of each; unknown or ended ones are no error."""
        for request_id in request_ids:
            for request in self._scheduler.abort(request_id, choice):
                self._runner.release(request)
                self._outputs.append(
                    RequestOutput(request_id, request.choice, [], finish_reason="abort")
                )

    def offload_cold(self, hot_share: float) -> None:
        """Has the next step copy unused prefixes to host memory, but for the share used last."""
        self._kv.offload_cold(hot_share)

    def step(self, on_start: Callable[[], None] | None = None) -> StepResult:
        """Starts as many steps as may be in flight, completes the oldest, and reports it.

        `on_start` is called once they have started: what it does takes time of this thread alone.
        """
        scheduler, runner = self._scheduler, self._runner
        while scheduler.has_work and runner.can_submit and runner.num_in_flight < scheduler.depth:
            start_ns = self._clock.now_ns()
            scheduled = scheduler.schedule(start_ns)
            runner.preempt(scheduled.preempted)
            if scheduled.is_empty:
                break
            self._schedule_starts.append(start_ns)
            runner.submit(scheduled)
        if not runner.num_in_flight:
            if scheduler.has_work:
                raise InvariantError("requests wait, nothing runs, and nothing was scheduled")
            return StepResult(self._take_outputs(), None)
        if on_start is not None:
            on_start()
        tokens = runner.wait()
        outputs = self._take_outputs()
        token_ids = self._update(tokens, outputs)
        filled, scheduled = tokens.filled, tokens.filled.scheduled
        end = StepEnd(
            tokens,
            scheduled,
            self._schedule_starts.pop(0),
            self._clock.now_ns(),
            filled.num_kv_tokens_read,
            filled.num_qk_pairs,
            self._was_idle,
            scheduler.depth,
        )
        self._was_idle = False
        if self._step_time is not None:
            self._learn(self._step_time, end)
        batch = scheduled.batch
        result = StepResult(
            outputs,
            partial(self._reporter.report, end),
            batch if batch.requests else None,
            token_ids,
            is_plain=not outputs and not scheduler.num_waiting,
        )
        if self._depth is not None:
            self._tune(self._depth, result.stats, after_idle=end.after_idle)
        # A model changes slowly; only refusals need the load of each step.
        if self._refuses or scheduled.step_id % _STEPS_PER_LOAD == 0:
            self._note_load(result.stats)
        return result

    def load(self) -> LoadSnapshot | None:
        """What admission goes by; None where no targets are kept."""
        if self._pace is None:
            return None
        return self._pace.load(self._num_taken, self._clock.now_ns(), with_jobs=self._refuses)

    def close(self) -> None:
        """Ends what belongs to the model (threads, memory); the core is of no use afterwards."""
        try:
            while self._runner.num_in_flight:
                self._runner.wait()
        except EngineDeadError:
            pass  # whoever made the steps knows
        finally:
            self._on_close()

    def _take_outputs(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _update(self, tokens: StepTokens, outputs: list[RequestOutput]) -> list[int]:
        """Tells the scheduler what the step returned, appends what is not a plain token of a decode
        to `outputs`, and returns the tokens of the decodes."""
        scheduler, scheduled = self._scheduler, tokens.filled.scheduled
        token_ids, num_decodes = tokens.token_ids, scheduled.num_decodes
        # Otherwise somebody has joined or left: who was aborted meanwhile is looked for.
        is_plain = scheduler.is_whole(scheduled.batch) and tokens.logprobs is None
        finished = scheduler.update(scheduled, token_ids)
        if is_plain and not finished and not scheduled.prompts:
            return token_ids  # nearly all steps
        ends = {end.request: end for end in finished}
        decoded = token_ids[:num_decodes]
        if not is_plain or finished:
            self._output_decodes(tokens, decoded, ends, outputs)
        if scheduled.prompts:
            self._output_prompts(tokens, num_decodes, ends, outputs)
        for end in finished:
            self._runner.release(end.request)
        return decoded

    def _output_decodes(
        self,
        tokens: StepTokens,
        decoded: list[int],
        ends: dict[Request, FinishedRequest],
        outputs: list[RequestOutput],
    ) -> None:
        """Outputs for decodes that ended or ask for logprobs, whose tokens it marks."""
        over = RequestStatus.FINISHED
        logprobs = tokens.logprobs or [None] * len(decoded)
        requests = tokens.filled.scheduled.batch.requests
        for row, (request, logprob) in enumerate(zip(requests, logprobs, strict=False)):
            end = ends.pop(request, None)
            if end is not None or logprob is not None:
                if end is not None or request.status is not over:
                    scores = None if logprob is None else [logprob]
                    outputs.append(_output(request, [decoded[row]], scores, None, end))
                decoded[row] = IN_OUTPUTS
            elif request.status is over:
                decoded[row] = IN_OUTPUTS  # it ended while the step was in flight

    def _output_prompts(
        self,
        tokens: StepTokens,
        first_row: int,
        ends: dict[Request, FinishedRequest],
        outputs: list[RequestOutput],
    ) -> None:
        """Outputs of all but the decodes: first tokens, scores of prompts, ends without a token."""
        over = RequestStatus.FINISHED
        scores, sampled = tokens.prompt_logprobs, tokens.filled.sampled
        for row in range(first_row, len(sampled)):
            request = sampled[row]
            end, entries = ends.pop(request, None), scores.pop(request, None)
            # A token of a request that ended while the step was in flight goes to no one.
            if end is not None or request.status is not over:
                logprob = None if tokens.logprobs is None else tokens.logprobs[row]
                logprobs = None if logprob is None else [logprob]
                outputs.append(_output(request, [tokens.token_ids[row]], logprobs, entries, end))
        # What is left computed a part of a prompt, or scored one without sampling.
        for request, entries in scores.items():
            if request in ends or request.status is not over:
                outputs.append(_output(request, [], None, entries, ends.pop(request, None)))
        for request, end in ends.items():
            outputs.append(_output(request, [], None, None, end))

    def _learn(self, learned: LearnedStepTime, end: StepEnd) -> None:
        """Notes what was predicted of the step, and then learns from it."""
        scheduled = end.scheduled
        features = StepFeatures(
            scheduled.num_decodes,
            scheduled.num_prefill_tokens,
            end.num_kv_tokens_read,
            end.num_qk_pairs,
        )
        duration_ns = end.update_end_ns - end.schedule_start_ns
        end.predicted_ns, end.predicted_p99_ns = learned.observe(features, duration_ns)
        self._scheduler.observe(features, duration_ns, end.update_end_ns)

    def _note_load(self, stats: StepStats | None) -> None:
        if stats is not None:
            stats.load = self.load()

    def _tune(self, depth: PipelineDepth, stats: StepStats | None, *, after_idle: bool) -> None:
        """Has the depth follow the load; the record has what held for its step."""
        if stats is None:
            return
        depth.observe(
            num_decode_seqs=stats.num_decode_seqs,
            num_prefill_tokens=stats.num_prefill_tokens,
            num_running=stats.num_running,
            start_ns=stats.schedule_start_ns,
            end_ns=stats.update_end_ns,
            after_idle=after_idle,
        )
        self._scheduler.depth = depth.depth
        stats.kv_unwritten_permille = round(1000 * depth.unwritten_share)


def _output(
    request: Request,
    token_ids: list[int],
    logprobs: list[TokenLogprob] | None,
    prompt_logprobs: list[TokenLogprob | None] | None,
    end: FinishedRequest | None,
) -> RequestOutput:
    output = RequestOutput(request.request_id, request.choice, token_ids, logprobs, prompt_logprobs)
    if end is not None:
        output.finish_reason = end.finish_reason
        output.stop_token_id = end.stop_token_id
    if request.sampling.prompt_logprobs is not None and request.choice == 0:
        is_first = prompt_logprobs is not None and prompt_logprobs[0] is None
    else:
        is_first = request.num_output_tokens == len(token_ids)
    if is_first:
        output.num_cached_tokens = request.num_cached_tokens
        output.first_scheduled_ns = request.first_scheduled_ns
    return output
