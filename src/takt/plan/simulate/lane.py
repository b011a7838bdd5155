"""One micro-batch: a scheduler, the steps it makes, and the stamps of their tokens."""

from __future__ import annotations

from array import array

from takt.errors import InvalidRequestError
from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.contract import LaneContract
from takt.plan.simulate.durations import StepDuration
from takt.plan.simulate.kv_io import KVTransfers
from takt.plan.simulate.speed_trace import SpeedTrace
from takt.scheduler.base import Scheduler
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request
from takt.scheduler.step_time import StepFeatures
from takt.types.sampling_params import SamplingParams

_TOKEN_ID = 0
"""No simulated request stops at a token, so that all ids may be the same."""


class Lane:
    """Runs one scheduler. A step's tokens are stamped when the last stage ends.

    `stage_free_ns` is shared by the lanes of a pipeline: a stage works on one step at a time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        duration: StepDuration,
        stage_free_ns: list[float],
        transfers: KVTransfers | None,
        window_ns: tuple[int, int],
        contract: LaneContract,
        speed: SpeedTrace | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._predict_ns = duration.predict_ns
        self._speed = speed
        self._stage_free_ns = stage_free_ns
        self._transfers = transfers if transfers and not transfers.is_async else None
        self._outgoing_ns = 0.0
        self._window = window_ns
        self.contract = contract
        self._sampling = SamplingParams()
        self._prompts: dict[int, list[int]] = {}
        self._index_of: dict[Request, int] = {}
        self._stalled: dict[Request, float] = {}  # preempted after a token at this time
        self._last_end = 0.0
        self.num_requests = 0
        self.first_token_ns: dict[int, float] = {}
        self.last_token_ns: dict[int, float] = {}
        self.gaps_ns = array("d")
        self.gap_counts = array("d")
        self.gap_ends_ns = array("d")
        self.num_steps = 0
        self.running_ns = 0.0
        self.busy_ns = 0.0
        self.num_preemptions = 0
        self.peak_kv_share = 0.0

    def add(self, index: int, arrival: Arrival) -> None:
        num_prompt, num_output = arrival.num_prompt_tokens, arrival.num_output_tokens
        prompt = self._prompts.get(num_prompt)
        if prompt is None:
            prompt = self._prompts[num_prompt] = [_TOKEN_ID] * num_prompt
        request = Request(
            request_id=str(index),
            prompt_token_ids=prompt,
            sampling=self._sampling,
            max_tokens=num_output,
            stop_token_ids=frozenset(),
            arrival_ns=arrival.time_ns,
            slo=arrival.slo,
        )
        if not self.contract.lets_in(index, request):
            return
        try:
            self._scheduler.add(request)
        except InvalidRequestError as error:
            raise PlanInputError(f"request {index} can never be served: {error}") from error
        self._index_of[request] = index
        self.num_requests += 1

    def step(self, now_ns: float) -> float | None:
        """Runs the step that starts at `now_ns`; returns its end, None if there is no work."""
        scheduler = self._scheduler
        output = scheduler.schedule(int(now_ns))
        if output.is_empty:
            return None
        for request in output.preempted:
            if request.num_output_tokens > 0:
                self._stalled.setdefault(request, self._last_end)
        features = _features(output)
        end = self._run(output, features, now_ns)
        kv_share = scheduler.kv_blocks_used / scheduler.kv_blocks_total
        self.peak_kv_share = max(self.peak_kv_share, kv_share)
        self._stamp(output, end)
        self._update(output, end)
        scheduler.observe(features, int(end - now_ns), int(end))
        self.contract.end_step(scheduler, features, end - now_ns, int(end))
        self.num_steps += 1
        self.num_preemptions += len(output.preempted)
        start, stop = self._window
        held = min(end, stop) - max(now_ns, start)
        if held > 0:
            self.busy_ns += held
            self.running_ns += held * output.num_seqs
        self._last_end = end
        return end

    def _run(self, output: SchedulerOutput, features: StepFeatures, now_ns: float) -> float:
        """The time at which the step leaves the last stage."""
        duration = self._predict_ns(features)
        if self._speed is not None:
            duration *= self._speed.factor_at(now_ns)
        duration += self._transfer_ns(output)
        stages = self._stage_free_ns
        part = duration / len(stages)
        time = now_ns
        for stage, free in enumerate(stages):
            time = max(time, free) + part
            stages[stage] = time
        return time

    def _transfer_ns(self, output: SchedulerOutput) -> float:
        transfers = self._transfers
        if transfers is None:
            return 0.0
        waited, self._outgoing_ns = self._outgoing_ns, 0.0
        for item in output.prompts:
            if item.start == 0 and item.request.num_preemptions == 0:
                waited += transfers.transfer_ns(item.request.num_prompt_tokens)
        return waited

    def _stamp(self, output: SchedulerOutput, end: float) -> None:
        """First tokens, and the gaps of all others: one entry for the decodes of a step."""
        num_decodes = output.num_decodes
        measures = self._window[0] <= end <= self._window[1]
        if num_decodes and measures:
            self.gaps_ns.append(end - self._last_end)
            self.gap_counts.append(num_decodes)
            self.gap_ends_ns.append(end)
        if num_decodes and self.contract.is_late(end - self._last_end):
            for request in output.batch.requests:
                index = self._index_of[request]
                self.contract.note_gap(index, request, end - self._last_end)
        for item in output.prompts:
            if not item.samples:
                continue
            stalled_at = self._stalled.pop(item.request, None)
            if stalled_at is None:
                self.first_token_ns[self._index_of[item.request]] = end
            elif measures:
                self.gaps_ns.append(end - stalled_at)
                self.gap_counts.append(1)
                self.gap_ends_ns.append(end)

    def _update(self, output: SchedulerOutput, end: float) -> None:
        for ended in self._scheduler.update(output, [_TOKEN_ID] * output.num_sampled):
            request = ended.request
            self.last_token_ns[self._index_of.pop(request)] = end
            self.num_requests -= 1
            if self._transfers is not None:
                self._outgoing_ns += self._transfers.transfer_ns(request.num_tokens)


def _features(output: SchedulerOutput) -> StepFeatures:
    """Contexts and pairs as the engine's step record counts them."""
    contexts = pairs = output.num_decode_kv_tokens
    for item in output.prompts:
        end = item.start + item.num_tokens
        contexts += end
        pairs += item.num_tokens * (item.start + end + 1) // 2
    return StepFeatures(output.num_decodes, output.num_prefill_tokens, contexts, pairs)
