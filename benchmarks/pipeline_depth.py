"""The depth that follows the load against each fixed depth of a pipeline, on a committed trace.

    python benchmarks/pipeline_depth.py             Gemma 3 270M, PP 4: every depth, 3 rounds
    python benchmarks/pipeline_depth.py --quick     SmolLM2, PP 2, few requests: a check
    python benchmarks/pipeline_depth.py --write     makes the trace again

Each round runs the trace once at every fixed depth from 1 to one more than there are stages, and
once with `--pipeline-depth auto`; figures are medians of rounds. The trace is closed-loop: a
request starts as soon as fewer run than its line allows, so that throughput is the engine's and not
the trace's. It has three parts: many long answers, long prompts, and few requests. It is run with a
pool that has room for all, and with one where what is reserved keeps others waiting; some twenty
minutes each.

The bar: auto has at least 0.95 of the best fixed depth's tokens per second, in both pools. Exit
code 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import astuple, dataclass, fields
from pathlib import Path

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
from takt.types.sampling_params import SamplingParams

BAR = 0.95
PATH = Path(__file__).parent / "traces" / "pipeline_depth.csv"
SEED = 20250301
NUM_ROUNDS = 3
POOL_BYTES = 1 << 30
TIGHT_SEQUENCES = 10
"""Requests of the first kind that the small pool has room for: a third of those that may run."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Starts when fewer than `max_running` run. `max_tokens` is what it may have, and reserves;
    `num_output_tokens` what it takes, as if a stop came then."""

    max_running: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int

    def add_to(self, core: EngineCore, name: str, index: int) -> None:
        prompt = [(7 * index + 31 * i) % 1000 + 5 for i in range(self.num_prompt_tokens)]
        sampling = SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=True)
        core.add(AddRequest(name, prompt, sampling))


@dataclass(frozen=True, slots=True)
class Run:
    tokens_s: float
    depths: Counter[int]
    """Steps at each depth."""
    unwritten: float
    """Mean share of the pool that was reserved and not written, where it was sampled."""


def generate() -> list[TraceRequest]:
    """The trace that is committed."""
    rng = random.Random(SEED)
    requests = []
    for count, running, prompt, output in ((96, 32, 48, 96), (24, 16, 384, 16), (12, 3, 64, 64)):
        for _ in range(count):
            num_output = max(2, round(rng.gammavariate(4, output / 4)))
            num_output = min(num_output, 2 * output)
            num_prompt = max(1, min(round(rng.expovariate(1 / prompt)), 3 * prompt))
            requests.append(TraceRequest(running, num_prompt, num_output, 2 * output))
    return requests


def save(requests: list[TraceRequest]) -> None:
    with PATH.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(field.name for field in fields(TraceRequest))
        rows.writerows(astuple(request) for request in requests)


def load() -> list[TraceRequest]:
    with PATH.open(newline="") as file:
        return [TraceRequest(**{k: int(v) for k, v in row.items()}) for row in csv.DictReader(file)]


def make_core(options: argparse.Namespace, depth: str, pool_bytes: int) -> EngineCore:
    config = EngineConfig(
        model=ModelConfigOptions(model=options.model, max_model_len=1536),
        cache=CacheOptions(kv_cache_memory_bytes=pool_bytes, enable_prefix_caching=False),
        scheduler=SchedulerOptions(max_num_seqs=32, max_num_batched_tokens=128),
        parallel=ParallelOptions(
            tensor_parallel_size=options.tp,
            pipeline_parallel_size=options.pp,
            pipeline_depth=depth,
        ),
    )
    return build_core(config, load_model(config), MonotonicClock())


def tight_pool_bytes(options: argparse.Namespace, trace: list[TraceRequest]) -> int:
    """For `TIGHT_SEQUENCES` of the longest answers, and one request of the engine's longest."""
    core = make_core(options, "1", POOL_BYTES)
    core.close()
    spec, first = core.sizes.kv, trace[0]

    def num_bytes(num_tokens: int) -> int:
        num_blocks = -(-num_tokens // spec.block_size)
        return num_blocks * sum(spec.block_bytes(g) for g in range(len(spec.groups)))

    wanted = TIGHT_SEQUENCES * num_bytes(first.num_prompt_tokens + first.max_tokens)
    return max(wanted, round(1.2 * num_bytes(core.sizes.max_model_len)))


def run_trace(core: EngineCore, trace: list[TraceRequest], name: str) -> Run:
    waiting = list(enumerate(trace))[::-1]
    due = {f"{name}-{i}": request.num_output_tokens for i, request in enumerate(trace)}
    running: set[str] = set()
    num_tokens, depths, shares = 0, Counter[int](), []
    start = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < waiting[-1][1].max_running:
            index, request = waiting.pop()
            running.add(f"{name}-{index}")
            request.add_to(core, f"{name}-{index}", index)
        result = core.step()
        for output in result.all_outputs():
            num_new = len(output.token_ids)
            if num_new and output.request_id in running:
                due[output.request_id] -= num_new
                num_tokens += num_new
                if due[output.request_id] <= 0:
                    running.discard(output.request_id)
                    core.abort([output.request_id])
        if result.stats is not None:
            depths[result.stats.pipeline_depth] += 1
            shares.append(result.stats.kv_unwritten_permille / 1000)
    seconds = time.perf_counter() - start
    while core.has_work:
        core.step()
    prompts = sum(request.num_prompt_tokens for request in trace)
    return Run((num_tokens + prompts) / seconds, depths, statistics.fmean(shares))


def measure(options: argparse.Namespace, pool_bytes: int) -> dict[str, list[Run]]:
    trace = load()
    if options.quick:
        trace = trace[:6] + trace[96:99] + trace[-2:]
    names = [*map(str, range(1, options.pp + 2)), "auto"]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    num_rounds = 1 if options.quick else NUM_ROUNDS
    for turn in range(num_rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            core = make_core(options, name, pool_bytes)
            try:
                runs[name].append(run_trace(core, trace, f"{turn}-{name}"))
            finally:
                core.close()
            print(
                f"round {turn + 1} of {num_rounds}, depth {name}:"
                f" {runs[name][-1].tokens_s:.1f} tokens/s",
                file=sys.stderr,
            )
    return runs


def report(title: str, runs: dict[str, list[Run]]) -> bool:
    rates = {name: statistics.median(run.tokens_s for run in each) for name, each in runs.items()}
    auto = rates.pop("auto")
    best = max(rates, key=lambda name: rates[name])
    steps = sum((run.depths for run in runs["auto"]), Counter[int]())
    spent = ", ".join(f"{100 * n / steps.total():.0f} % at {d}" for d, n in sorted(steps.items()))
    unwritten = statistics.fmean(run.unwritten for run in runs["auto"])
    print(title)
    for name, rate in rates.items():
        print(f"  depth {name:>4}: {rate:8.1f} tokens/s, {rate / rates[best] - 1:+.1%}")
    print(f"  depth auto: {auto:8.1f} tokens/s, {auto / rates[best] - 1:+.1%}; steps: {spent};")
    print(f"    {unwritten:.0%} of the pool reserved and not written on average")
    is_met = auto >= BAR * rates[best]
    verdict = "met" if is_met else "missed"
    print(f"  {auto / rates[best]:.2f} of the best fixed depth (bar: {BAR:g}): {verdict}")
    return is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pool", choices=("both", "large", "small"), default="both")
    parser.add_argument("--model")
    parser.add_argument("-tp", type=int, default=1)
    parser.add_argument("-pp", type=int)
    options = parser.parse_args()
    if options.write:
        save(generate())
        return
    options.model = options.model or ("smollm2-135m" if options.quick else "gemma3-270m")
    options.pp = options.pp or (2 if options.quick else 4)
    pools = {}
    if options.pool != "small":
        pools["room for all"] = POOL_BYTES
    if options.pool != "large":
        pools["small pool"] = tight_pool_bytes(options, load())
    verdicts = [
        report(
            f"{options.model}, TP {options.tp} x PP {options.pp}, {pool}",
            measure(options, num_bytes),
        )
        for pool, num_bytes in pools.items()
    ]
    sys.exit(0 if all(verdicts) or options.quick else 1)


if __name__ == "__main__":
    main()
