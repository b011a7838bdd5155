"""Decoding on ranks against one process with one thread, on this machine, in turns.

    python benchmarks/ranks.py             Gemma 3 270M, TP 2 x PP 4 x DP 2: 32 sequences at 256
    python benchmarks/ranks.py --quick     short contexts and few tokens: a check that it runs
    python benchmarks/ranks.py -dp 1       eight ranks

The bar: all sequences get their next token within 2.5 times the time that one thread needs for it,
divided by the CPUs. It is for more ranks than CPUs: what their taking turns may cost. Ranks are
engine processes behind the server's own client, the single process is driven directly. Exit code 1
if the bar does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

from takt.clock import MonotonicClock
from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine.build import build_core
from takt.engine.core import EngineCore
from takt.engine.load import load_model
from takt.engine.messages import AddRequest
from takt.engine.replicas import ReplicatedEngineClient
from takt.ops.create import num_usable_cpus
from takt.types.sampling_params import SamplingParams

BAR = 2.5
NUM_SEQS = 32


def make_config(
    options: argparse.Namespace, num_threads: int | None, **parallel: Any
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfigOptions(
            model=options.model, max_model_len=options.context + 256, num_threads=num_threads
        ),
        cache=CacheOptions(kv_cache_memory_bytes=1 << 30, enable_prefix_caching=False),
        scheduler=SchedulerOptions(max_num_seqs=NUM_SEQS, max_num_batched_tokens=512),
        parallel=ParallelOptions(**parallel),
    )


def requests(options: argparse.Namespace, turn: int) -> list[AddRequest]:
    sampling = SamplingParams(temperature=0.0, max_tokens=options.tokens + 1, ignore_eos=True)
    return [
        AddRequest(
            f"{turn}-{i}",
            [(turn + 7 * i + j) % 1000 + 5 for j in range(options.context)],
            sampling,
        )
        for i in range(NUM_SEQS)
    ]


class Meter:
    """Time of a token for every sequence, from when all have their first one.

    Prompts of other sequences are over by then; what was decoded meanwhile does not count.
    """

    def __init__(self) -> None:
        self._num_tokens: dict[str, int] = {}
        self._start = self._end = 0.0
        self._num_before = 0

    def received(self, request_id: str, num_tokens: int) -> None:
        self._num_tokens[request_id] = self._num_tokens.get(request_id, 0) + num_tokens
        self._end = time.perf_counter()
        if not self._start and len(self._num_tokens) == NUM_SEQS:
            self._start, self._num_before = self._end, sum(self._num_tokens.values())

    @property
    def seconds_per_token(self) -> float:
        num_tokens = sum(self._num_tokens.values()) - self._num_before
        return (self._end - self._start) / (num_tokens / NUM_SEQS)


def of_one_process(core: EngineCore, options: argparse.Namespace, turn: int) -> float:
    meter = Meter()
    for request in requests(options, turn):
        core.add(request)
    while core.has_work:
        for output in core.step().all_outputs():
            meter.received(output.request_id, len(output.token_ids))
    return meter.seconds_per_token


async def of_ranks(client: ReplicatedEngineClient, options: argparse.Namespace, turn: int) -> float:
    meter = Meter()

    async def read(request: AddRequest) -> None:
        async for output in client.generate(request):
            meter.received(output.request_id, len(output.token_ids))

    await asyncio.gather(*(read(request) for request in requests(options, turn)))
    return meter.seconds_per_token


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Medians of turns that alternate."""
    config = make_config(options, 1)
    one = build_core(config, load_model(config), MonotonicClock())
    ranks = ReplicatedEngineClient(
        make_config(
            options,
            None,
            tensor_parallel_size=options.tp,
            pipeline_parallel_size=options.pp,
            data_parallel_size=options.dp,
        )
    )
    times: dict[str, list[float]] = {"one": [], "ranks": []}
    try:
        await ranks.start()
        for turn in range(1 if options.quick else 3):
            times["one"].append(of_one_process(one, options, turn))
            times["ranks"].append(await of_ranks(ranks, options, turn))
    finally:
        await ranks.close()
        one.close()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("-tp", type=int, default=2)
    parser.add_argument("-pp", type=int, default=4)
    parser.add_argument("-dp", type=int, default=2)
    options = parser.parse_args()
    options.context, options.tokens = (16, 4) if options.quick else (256, 32)
    times = asyncio.run(measure(options))
    single, shared = times["one"], times["ranks"]
    num_cpus, num_ranks = num_usable_cpus(), options.tp * options.pp * options.dp
    ratio = shared / (single / num_cpus)
    verdict = "met" if ratio <= BAR else "missed"
    print(
        f"{options.model}, {NUM_SEQS} sequences at context {options.context}: one thread "
        f"{single * 1e3:.1f} ms, {num_ranks} ranks on {num_cpus} CPUs {shared * 1e3:.1f} ms, "
        f"{ratio:.2f} times one thread / {num_cpus} (bar: {BAR:g}): {verdict}"
    )
    sys.exit(0 if ratio <= BAR or options.quick else 1)


if __name__ == "__main__":
    main()
