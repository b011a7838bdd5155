"""Decoding on ranks against one process with one thread, on this machine, in turns.

    python benchmarks/ranks.py             Gemma 3 270M, TP 2 x PP 4: 32 sequences at context 256
    python benchmarks/ranks.py --quick     short contexts and few tokens: a check that it runs

The bar: all sequences get their next token within 2.5 times the time that one thread needs for it,
divided by the CPUs. It is for more ranks than CPUs: what their taking turns may cost. Exit code 1
if it does not hold.
"""

from __future__ import annotations

import argparse
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
from takt.ops.create import num_usable_cpus
from takt.types.sampling_params import SamplingParams

BAR = 2.5
NUM_SEQS = 32


def make_core(options: argparse.Namespace, num_threads: int | None, **parallel: Any) -> EngineCore:
    config = EngineConfig(
        model=ModelConfigOptions(
            model=options.model, max_model_len=options.context + 256, num_threads=num_threads
        ),
        cache=CacheOptions(kv_cache_memory_bytes=1 << 30, enable_prefix_caching=False),
        scheduler=SchedulerOptions(max_num_seqs=NUM_SEQS, max_num_batched_tokens=512),
        parallel=ParallelOptions(**parallel),
    )
    return build_core(config, load_model(config), MonotonicClock())


def seconds_per_token(core: EngineCore, options: argparse.Namespace, turn: int) -> float:
    """Time in which every sequence gets a token, over `options.tokens` of them."""
    num_tokens = options.tokens
    for i in range(NUM_SEQS):
        prompt = [(turn + 7 * i + j) % 1000 + 5 for j in range(options.context)]
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens + 1, ignore_eos=True)
        core.add(AddRequest(f"{turn}-{i}", prompt, sampling))
    num_first = 0
    while num_first < NUM_SEQS:
        num_first += sum(len(output.token_ids) for output in core.step().outputs)
    # Prompts of other sequences are over once all have their first token; what was decoded
    # meanwhile does not count.
    start, left = time.perf_counter(), NUM_SEQS * (num_tokens + 1) - num_first
    total = left
    while left > 0:
        left -= sum(len(output.token_ids) for output in core.step().outputs)
    return (time.perf_counter() - start) / (total / NUM_SEQS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("-tp", type=int, default=2)
    parser.add_argument("-pp", type=int, default=4)
    options = parser.parse_args()
    options.context, options.tokens = (16, 4) if options.quick else (256, 32)
    num_turns = 1 if options.quick else 3
    one = make_core(options, 1)
    ranks = make_core(
        options, None, tensor_parallel_size=options.tp, pipeline_parallel_size=options.pp
    )
    times: dict[str, list[float]] = {"one": [], "ranks": []}
    try:
        for turn in range(num_turns):
            times["one"].append(seconds_per_token(one, options, turn))
            times["ranks"].append(seconds_per_token(ranks, options, turn))
    finally:
        one.close()
        ranks.close()
    single, shared = (statistics.median(times[name]) for name in ("one", "ranks"))
    num_cpus, num_ranks = num_usable_cpus(), options.tp * options.pp
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
