"""Builds engine cores around the fake model and runs them until nothing is left to do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from fake_model import fake_model

from takt.clock import ManualClock, MonotonicClock
from takt.config import CacheOptions, EngineConfig, ModelConfigOptions, SchedulerOptions
from takt.engine.build import LoadedModel, build_core
from takt.engine.core import EngineCore
from takt.engine.messages import AddRequest, RequestOutput, StepStats
from takt.types.sampling_params import SamplingParams

POOL_BYTES = 1 << 20
"""2,048 blocks of 16 tokens with full attention alone."""


def engine_config(**options: Any) -> EngineConfig:
    """Small sizes; `options` are fields of any of the three tables."""
    values: dict[str, Any] = {
        "model": "fake",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 64,
        "kv_cache_memory_bytes": POOL_BYTES,
        **options,
    }
    tables = []
    for table in (ModelConfigOptions, CacheOptions, SchedulerOptions):
        names = table.__dataclass_fields__.keys() & values.keys()
        tables.append(table(**{name: values.pop(name) for name in names}))
    assert not values, f"no such option: {values}"
    return EngineConfig(model=tables[0], cache=tables[1], scheduler=tables[2])


def make_core(
    model: LoadedModel | None = None,
    clock: ManualClock | MonotonicClock | None = None,
    **options: Any,
) -> EngineCore:
    return build_core(engine_config(**options), model or fake_model(), clock or MonotonicClock())


@dataclass
class Collected:
    """All that came of one choice."""

    token_ids: list[int] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[-1].finish_reason

    @property
    def logprobs(self) -> list[Any]:
        return [entry for output in self.outputs for entry in output.logprobs or []]

    @property
    def prompt_logprobs(self) -> list[Any]:
        return [entry for output in self.outputs for entry in output.prompt_logprobs or []]

    @property
    def num_cached_tokens(self) -> int:
        """Reported exactly once."""
        (value,) = [o.num_cached_tokens for o in self.outputs if o.num_cached_tokens is not None]
        return value


class Collector:
    def __init__(self) -> None:
        self.choices: dict[tuple[str, int], Collected] = defaultdict(Collected)
        self.stats: list[StepStats] = []

    def step(self, core: EngineCore) -> None:
        result = core.step()
        assert len(core._runner._seats) == core._scheduler.num_running
        if result.stats is not None:
            self.stats.append(result.stats)
        for output in result.all_outputs():
            collected = self.choices[output.request_id, output.choice]
            assert not collected.outputs or collected.finish_reason is None, "output after the end"
            collected.token_ids += output.token_ids
            collected.outputs.append(output)

    def run(self, core: EngineCore, max_num_steps: int = 10_000) -> None:
        for _ in range(max_num_steps):
            if not core.has_work:
                return
            self.step(core)
        raise AssertionError(f"still busy after {max_num_steps} steps")

    def __getitem__(self, key: str | tuple[str, int]) -> Collected:
        return self.choices[(key, 0) if isinstance(key, str) else key]


def run_all(core: EngineCore, requests: list[AddRequest]) -> Collector:
    for request in requests:
        core.add(request)
    collector = Collector()
    collector.run(core)
    return collector


def request(request_id: str, prompt: list[int], **sampling: Any) -> AddRequest:
    return AddRequest(request_id, prompt, SamplingParams(**{"temperature": 0.0, **sampling}))
