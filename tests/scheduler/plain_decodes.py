"""The decodes of a step in the plainest way: every running sequence is looked at, each time."""

from __future__ import annotations

from collections.abc import Sequence

from takt.scheduler.base import Scheduler
from takt.scheduler.decode_batch import DecodeBatch
from takt.scheduler.decoding import DecodeScheduler
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request, RequestStatus
from takt.scheduler.step_builder import StepBuilder


class PlainDecodes(DecodeScheduler):
    """Knows nothing ahead: what a sequence lacks is counted from its tokens in every step."""

    def __init__(self, scheduler: Scheduler, *, is_pipeline: bool) -> None:
        self._scheduler = scheduler
        self._kv = scheduler._kv
        self._secures = not scheduler._reserves_output
        self._is_pipeline = is_pipeline

    @property
    def num_steps_left(self) -> int:
        decoding = [r for r in self._scheduler._running if r.num_computed_tokens >= r.num_tokens]
        return max([r.max_computed_tokens - r.num_computed_tokens for r in decoding], default=0)

    def join(self, request: Request) -> None:
        pass

    def leave(self, request: Request) -> None:
        pass

    def schedule(self, step: StepBuilder, most: int) -> None:
        requests: list[Request] = []
        starts: list[int] = []
        for request in list(self._scheduler._running):
            start = request.num_computed_tokens
            num_tokens = request.num_tokens + request.num_in_flight_tokens
            if num_tokens - start != 1 or start < request.num_prompt_tokens:
                continue
            if start == request.max_computed_tokens:
                continue
            if self._is_pipeline and (request.num_in_flight_tokens or len(requests) >= most):
                continue
            if start >= request.num_slots:
                if self._secures and not self._scheduler._secure_block(request, step):
                    continue
                request.num_slots = self._kv.append(request, num_tokens)
            requests.append(request)
            starts.append(start)
            request.num_computed_tokens = num_tokens
            request.num_in_flight_tokens += 1
            request.last_step_id = step.step_id
        if requests:
            num_kv_tokens = sum(starts) + len(starts)
            step.add_decodes(DecodeBatch(requests, starts), 0, num_kv_tokens, begins_block=True)

    def _take_decodes(
        self, output: SchedulerOutput, token_ids: Sequence[int]
    ) -> list[tuple[Request, int]]:
        return [
            (request, token_id)
            for request, token_id in zip(output.batch.requests, token_ids, strict=False)
            if request.status is not RequestStatus.FINISHED and self._take_one(request, token_id)
        ]


def decode_plainly(scheduler: Scheduler, *, is_pipeline: bool) -> None:
    scheduler._decoding = PlainDecodes(scheduler, is_pipeline=is_pipeline)
