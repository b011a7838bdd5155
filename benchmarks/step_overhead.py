"""Time outside kernels per step: scheduling, filling the input, reading the output, the message.

    python benchmarks/step_overhead.py                       # a program that does nothing
    python benchmarks/step_overhead.py --model smollm2-135m  # between real steps, caches used

Each stream decodes; the prompt's steps are left out. Prints percentiles over `--steps` steps.
"""

from __future__ import annotations

import argparse
import platform
import time

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from takt.clock import MonotonicClock
from takt.config import CacheOptions, EngineConfig, ModelConfigOptions, SchedulerOptions
from takt.engine.build import LoadedModel, build_core
from takt.engine.core import EngineCore
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.messages import AddRequest, StepMessage
from takt.engine.sizing import EngineSizes, KVShape
from takt.observe.step_record import StepPart, StepRecord
from takt.types.kv import KVGroupSpec
from takt.types.sampling_params import SamplingParams
from takt.types.step import StepInput, StepOutput

NUM_PROMPT_TOKENS = 64
PERCENTS = [50.0, 90.0, 99.0]


class NoKernels:
    """Returns token 1 for every row."""

    def run(self, step: StepInput, output: StepOutput) -> None:
        output["token_ids"][: step.num_rows] = 1
        output["header"][0] = step["header"][0]


def empty_model(num_groups: int) -> LoadedModel:
    def make_executor(sizes: EngineSizes) -> Executor:
        return InlineExecutor(NoKernels())

    windows = [None, 512][:num_groups]
    return LoadedModel(
        kv_shape=KVShape(
            groups=[KVGroupSpec((g,), window) for g, window in enumerate(windows)],
            num_kv_heads=1,
            head_dim=2,
            max_model_len=8192,
        ),
        vocab_size=50_000,
        eos_token_ids=frozenset(),
        precision="none",
        weight_bytes=0,
        num_threads=1,
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=lambda: None,
    )


def make_core(model: str | None, num_groups: int) -> EngineCore:
    config = EngineConfig(
        model=ModelConfigOptions(model=model or "none"),
        cache=CacheOptions(kv_cache_memory_bytes=1 << 30 if model else 64 << 20),
        scheduler=SchedulerOptions(max_num_seqs=256),
    )
    if model is None:
        return build_core(config, empty_model(num_groups), MonotonicClock())
    from takt.engine.load import load_model

    return build_core(config, load_model(config), MonotonicClock())


def measure(core: EngineCore, num_streams: int, num_steps: int) -> dict[str, list[float]]:
    """Percentiles in microseconds, by part of the step."""
    num_tokens = num_steps + 20
    for index in range(num_streams):
        prompt = [(index * 31 + i) % 40_000 for i in range(NUM_PROMPT_TOKENS)]
        sampling = SamplingParams(
            max_tokens=num_tokens, temperature=0.7, top_p=0.9, seed=index, ignore_eos=True
        )
        core.add(AddRequest(f"{num_streams}-{index}", prompt, sampling))
    record, encode_ns = StepRecord(num_steps), []
    encoder = msgspec.msgpack.Encoder()
    while core.has_work:
        result = core.step()
        begin = time.monotonic_ns()
        encoder.encode(StepMessage(1, result.outputs, result.stats, result.token_ids))
        end = time.monotonic_ns()
        stats = result.stats
        if stats is not None and stats.num_decode_seqs == num_streams:
            record.add(stats)
            encode_ns.append(end - begin)
    encode = np.array(encode_ns[-len(record) :])
    outside = record.durations_ns(StepPart.SCHEDULE) + record.durations_ns(StepPart.UPDATE) + encode
    parts = {
        "schedule and fill": record.durations_ns(StepPart.SCHEDULE),
        "run": record.durations_ns(StepPart.RUN),
        "read and update": record.durations_ns(StepPart.UPDATE),
        "encode": encode,
        "outside run": outside,
    }
    return {
        name: [float(v) / 1000 for v in np.percentile(values, PERCENTS)]
        for name, values in parts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="a real model instead of a program that does nothing")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--kv-groups", type=int, default=1, choices=(1, 2))
    options = parser.parse_args()
    core = make_core(options.model, options.kv_groups)
    table = Table("streams", "part", *(f"P{p:g} us" for p in PERCENTS), title=platform.processor())
    for num_streams in options.streams:
        for name, values in measure(core, num_streams, options.steps).items():
            table.add_row(str(num_streams), name, *(f"{v:.1f}" for v in values))
        table.add_section()
    core.close()
    Console().print(table)


if __name__ == "__main__":
    main()
