"""Cooperative offload on against off, on two real replicas whose KV pools are small.

    python benchmarks/offload.py             SmolLM2 135M, two replicas, alternating, five bursts
    python benchmarks/offload.py --quick     one burst: a check that it runs

Two tenants, each with a system prompt of its own that its replica caches. One's answers are long,
the other's short, and the server cannot know: all requests have the same `max_tokens`, and clients
stop reading when they have enough. They come in a burst: once all are somewhere, no routing mends
that one replica's pool is full and the other one's empties. Output is not reserved, so that a full
pool preempts. (Under a load that stays above what both replicas can do, both pools are full all the
time, and there is nobody to give work to: offload then changes little.)

The bar: with offload fewer preemptions, and a lower P99 of the time to the first token and of a
request's time. Exit code 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field

from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine.messages import AddRequest, StepStats
from takt.engine.replicas import ReplicatedEngineClient
from takt.types.sampling_params import SamplingParams

PREFIX_TOKENS = 384
OWN_TOKENS = 32
MAX_TOKENS = 400
NUM_BURSTS = 5
LONG, SHORT = (200, 360), (4, 16)
POOL_TOKENS = 2560
"""Of each replica: some eight long answers beside the prefix."""
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * (64 + 2)


@dataclass
class Outcome:
    num_preemptions: int = 0
    num_offloaded: int = 0
    first_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.num_preemptions += other.num_preemptions
        self.num_offloaded += other.num_offloaded
        self.first_ms += other.first_ms
        self.gaps_ms += other.gaps_ms
        self.whole_ms += other.whole_ms


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def make_config(options: argparse.Namespace, *, offloads: bool) -> EngineConfig:
    pool_bytes = 2 * POOL_TOKENS * KV_BYTES_PER_TOKEN
    return EngineConfig(
        model=ModelConfigOptions(model=options.model, max_model_len=1024),
        cache=CacheOptions(kv_cache_memory_bytes=pool_bytes, kv_reservation="optimistic"),
        scheduler=SchedulerOptions(max_num_seqs=64, max_num_batched_tokens=256),
        parallel=ParallelOptions(data_parallel_size=2, cooperative_offload=offloads),
    )


async def one_request(
    client: ReplicatedEngineClient, request: AddRequest, num_wanted: int, outcome: Outcome
) -> None:
    """Reads as much as it wants, and hangs up."""
    start = last = time.perf_counter()
    num_tokens = 0
    outputs = client.generate(request)
    try:
        async for output in outputs:
            now = time.perf_counter()
            into = outcome.gaps_ms if num_tokens else outcome.first_ms
            into.append((now - last) * 1e3)
            last = now
            num_tokens += len(output.token_ids)
            if num_tokens >= num_wanted:
                break
    finally:
        await outputs.aclose()
    outcome.whole_ms.append((last - start) * 1e3)


async def run(options: argparse.Namespace, round_number: int, *, offloads: bool) -> Outcome:
    outcome = Outcome()

    def on_step(stats: StepStats) -> None:
        outcome.num_preemptions += stats.num_preempted

    client = ReplicatedEngineClient(make_config(options, offloads=offloads), on_step=on_step)
    await client.start()
    rng = random.Random(round_number)
    prefixes = [[rng.randrange(100, 40_000) for _ in range(PREFIX_TOKENS)] for _ in range(2)]
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    tasks = []
    try:
        for number in range(options.requests):
            tenant = number % 2
            own = [rng.randrange(100, 40_000) for _ in range(OWN_TOKENS)]
            request = AddRequest(f"r{number}", [*prefixes[tenant], *own], sampling)
            num_wanted = rng.randint(*(SHORT if tenant else LONG))
            tasks.append(asyncio.create_task(one_request(client, request, num_wanted, outcome)))
            await asyncio.sleep(rng.expovariate(options.rate))
        await asyncio.gather(*tasks)
        outcome.num_offloaded = sum(status.num_offloaded for status in client.replicas)
        return outcome
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=60, help="of a burst")
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second of a burst")
    options = parser.parse_args()
    totals = {False: Outcome(), True: Outcome()}
    for number in range(1 if options.quick else NUM_BURSTS):
        for offloads in (False, True) if number % 2 == 0 else (True, False):
            totals[offloads].add(asyncio.run(run(options, number, offloads=offloads)))
    for offloads, total in totals.items():
        print(
            f"offload {'on' if offloads else 'off'}: {total.num_preemptions} preemptions, "
            f"{total.num_offloaded} requests moved; P99 of the first token "
            f"{p99(total.first_ms):.0f} ms, of a gap {p99(total.gaps_ms):.1f} ms, of a request "
            f"{p99(total.whole_ms):.0f} ms"
        )
    off, on = totals[False], totals[True]
    is_met = (
        on.num_preemptions < off.num_preemptions
        and p99(on.first_ms) < p99(off.first_ms)
        and p99(on.whole_ms) < p99(off.whole_ms)
    )
    print(f"fewer preemptions and lower P99s with offload: {'met' if is_met else 'missed'}")
    sys.exit(0 if is_met or options.quick else 1)


if __name__ == "__main__":
    main()
