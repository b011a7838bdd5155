"""Pace on a machine whose steps take what a formula says, on a virtual clock."""

from typing import Any

from kv_memory import kv_spec
from takt.kvcache.manager import KVCacheManager
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.pace import PaceScheduler
from takt.scheduler.request import Request
from takt.scheduler.slo import NO_SLO, SLO
from takt.scheduler.step_time import StepFeatures
from takt.types.sampling_params import SamplingParams

MS = 1_000_000


class Machine:
    """2 ms a step, 0.1 ms for each sequence and token of a prompt; P99 is a tenth more."""

    def predict_ns(self, features: StepFeatures) -> float:
        return MS * (2 + 0.1 * (features.num_decode_seqs + features.num_prefill_tokens))

    def p99_ns(self, features: StepFeatures) -> float:
        return 1.1 * self.predict_ns(features)

    def ratio(self, late_share: float) -> float:
        return 1.1

    def late_share(self, features: StepFeatures, limit_ns: float) -> float:
        return float(self.p99_ns(features) > limit_ns)


class PaceRunner:
    def __init__(
        self,
        slo: SLO,
        *,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        num_blocks: int = 2000,
        reserves_output: bool = True,
        slowness: float = 1.0,
        refuses: bool = False,
        **fields: Any,
    ) -> None:
        limits = SchedulerLimits(
            max_model_len=4096,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_rows=1024,
            **{"max_steps_in_flight": 1, "enable_chunked_prefill": True, **fields},
        )
        kv = KVCacheManager(kv_spec((None,)), [num_blocks], False)
        self.machine = Machine()
        self.scheduler = PaceScheduler(
            limits,
            kv,
            reserves_output=reserves_output,
            predictor=self.machine,
            slo=slo,
            refuses=refuses,
        )
        self.slowness = slowness
        self.now_ns = 0
        self.first_token_ns: dict[str, int] = {}
        self.gaps_ns: list[int] = []
        self._last_ns: dict[str, int] = {}
        self.log: list[str] = []

    def add(
        self, name: str, num_prompt: int, max_tokens: int = 4, slo: SLO = NO_SLO, **fields: Any
    ) -> Request:
        request = Request(
            request_id=name,
            prompt_token_ids=[1] * num_prompt,
            sampling=SamplingParams(max_tokens=max_tokens),
            max_tokens=max_tokens,
            stop_token_ids=frozenset(),
            arrival_ns=self.now_ns,
            slo=slo,
            **fields,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule(self.now_ns)
        if output.is_empty:
            self.now_ns += MS
            return output
        features = features_of(output)
        duration = int(self.slowness * self.machine.predict_ns(features))
        self.now_ns += duration
        for item in output.scheduled:
            if item.samples:
                name = item.request.request_id
                if name in self._last_ns:
                    self.gaps_ns.append(self.now_ns - self._last_ns[name])
                self.first_token_ns.setdefault(name, self.now_ns)
                self._last_ns[name] = self.now_ns
        sampled = [2] * output.num_sampled
        self.scheduler.update(output, sampled)
        self.scheduler.observe(features, duration, self.now_ns)
        self.log.append(words(output))
        return output

    def run(self, max_num_steps: int = 20_000) -> None:
        for _ in range(max_num_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("somebody starves")


def features_of(output: SchedulerOutput) -> StepFeatures:
    ends = [item.start + item.num_tokens for item in output.scheduled]
    num_decodes = output.total_num_scheduled_tokens - output.num_prefill_tokens
    return StepFeatures(num_decodes, output.num_prefill_tokens, sum(ends), sum(ends))


def words(output: SchedulerOutput) -> str:
    return " ".join(
        f"{i.request.request_id}:{i.start}+{i.num_tokens}{'*' if i.samples else ''}"
        for i in output.scheduled
    )
