"""A scheduler on a virtual clock, and the gate in front of it."""

from __future__ import annotations

import pytest

from takt.clock import ManualClock
from takt.config import CacheOptions, SchedulerOptions
from takt.engine.gate import Gate
from takt.engine.messages import AddRequest
from takt.errors import OverloadedError
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.create import create_scheduler
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.pace import PaceScheduler
from takt.scheduler.request import Request
from takt.scheduler.slo import SLO
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.sampling_params import SamplingParams

MS = 1_000_000


MODEL = StepTimeModel(
    (StepCoefficients(3e6, 4e4, 0, 0, 0), StepCoefficients(5e5, 4e5, 4e5, 0, 0)),
    residual_ratios=(1.0,) * 200,
)


class Served:
    """An engine's scheduler and the gate in front of it."""

    def __init__(self, *, num_kv_tokens: int = 40_000, **options: object) -> None:
        self.options = SchedulerOptions(
            **{"max_num_seqs": 32, "admission": "refuse", **options}  # type: ignore[arg-type]
        )
        spec = KVCacheSpec((KVGroupSpec((0,), None),), 1, 1, 16, KVDtype.BF16)
        kv = KVCacheManager(spec, [num_kv_tokens // 16], False, max_num_seqs=32, max_model_len=8192)
        self.learned = LearnedStepTime(MODEL)
        scheduler = create_scheduler(self.options, CacheOptions(), kv, 8192, predictor=self.learned)
        assert isinstance(scheduler, PaceScheduler)
        self.scheduler = scheduler
        self.clock = ManualClock()
        self.gate = Gate(self.options, self.clock)
        self.num_taken = 0
        self.num_outstanding = 0
        self.first_token_ns: dict[str, int] = {}
        self.arrival_ns: dict[str, int] = {}
        self.tell()

    def tell(self) -> None:
        """What a step's message brings to the server."""
        self.gate.take(self.scheduler.load(self.num_taken, self.clock.now_ns(), with_jobs=True))

    def ask(
        self,
        name: str,
        num_prompt: int = 100,
        max_tokens: int = 20,
        *,
        deliver: bool = True,
        **fields: int,
    ) -> None:
        request = AddRequest(
            name, [1] * num_prompt, SamplingParams(max_tokens=max_tokens), **fields
        )
        self.gate.check([request], self.num_outstanding)
        self.gate.sent(request)
        self.num_outstanding += 1
        self.arrival_ns[name] = self.clock.now_ns()
        if deliver:
            self.deliver(request)

    def deliver(self, request: AddRequest) -> None:
        limit = request.sampling.max_tokens
        assert limit is not None
        self.num_taken += 1
        self.scheduler.add(
            Request(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                sampling=request.sampling,
                max_tokens=limit,
                stop_token_ids=frozenset(),
                arrival_ns=self.clock.now_ns(),
                priority=request.priority,
                slo=SLO(request.slo_itl_ns, request.slo_ttft_ns),
            )
        )

    def step(self) -> None:
        output = self.scheduler.schedule(self.clock.now_ns())
        if output.is_empty:
            self.clock.advance(MS)
            return
        num_decodes = output.total_num_scheduled_tokens - output.num_prefill_tokens
        features = StepFeatures(num_decodes, output.num_prefill_tokens, 0, 0)
        duration = int(MODEL.predict_ns(features))
        self.clock.advance(duration)
        for item in output.scheduled:
            if item.samples:
                self.first_token_ns.setdefault(item.request.request_id, self.clock.now_ns())
        sampled = [2] * output.num_sampled
        for ended in self.scheduler.update(output, sampled):
            self.gate.ended(ended.request.request_id)
            self.num_outstanding -= 1
        self.scheduler.observe(features, duration, self.clock.now_ns())
        self.tell()

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()


def backlog(served: Served) -> None:
    """As many requests as are let in, one after the other."""
    with pytest.raises(OverloadedError):
        for i in range(50):
            served.ask(f"r{i}", 400)
