"""What cooperative offload is for: a burst whose lengths nobody knows, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

from core_driver import engine_config, request
from virtual_replicas import KV_BYTES_PER_TOKEN, VirtualEngineClient, VirtualLoop, run_virtually

from takt.config import ParallelOptions
from takt.engine.messages import AddRequest, StepStats
from takt.engine.replicas import ReplicatedEngineClient
from takt.scheduler.step_time import StepFeatures

POOL_TOKENS = 2560
"""Of each replica: some eight long answers."""
PREFIX_TOKENS, OWN_TOKENS, MAX_TOKENS = 384, 32, 400
LONG, SHORT = (200, 360), (4, 16)
NUM_REQUESTS, REQUESTS_PER_SECOND = 60, 40
SEEDS = (0, 1)


@dataclass
class Outcome:
    num_preemptions: int = 0
    num_moved: int = 0
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


class Client(VirtualEngineClient):
    """A small model on one thread."""

    @staticmethod
    def step_ns(step: StepFeatures) -> float:
        tokens = 0.25e6 * step.num_decode_seqs + 0.9e6 * step.num_prefill_tokens
        return 6e6 + tokens + 4.6e3 * step.num_kv_tokens_read


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


async def read(
    client: ReplicatedEngineClient, asked: AddRequest, num_wanted: int, outcome: Outcome
) -> None:
    """Hangs up once there is enough: all requests have the same limit."""
    loop = asyncio.get_running_loop()
    start_s, num_tokens = loop.time(), 0
    outputs = client.generate(asked)
    async for output in outputs:
        if not num_tokens:
            outcome.first_s.append(loop.time() - start_s)
        num_tokens += len(output.token_ids)
        if num_tokens >= num_wanted:
            break
    await outputs.aclose()
    outcome.whole_s.append(loop.time() - start_s)


async def burst(seed: int, outcome: Outcome, *, offloads: bool) -> None:
    """Two tenants; the answers of one are long."""

    def on_step(stats: StepStats) -> None:
        outcome.num_preemptions += stats.num_preempted

    config = engine_config(
        max_num_batched_tokens=256,
        kv_cache_memory_bytes=2 * POOL_TOKENS * KV_BYTES_PER_TOKEN,
        kv_reservation="optimistic",
        max_model_len=1024,
        num_threads=1,
    )
    parallel = ParallelOptions(data_parallel_size=2, cooperative_offload=offloads)
    config = replace(config, parallel=parallel)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    client = ReplicatedEngineClient(config, on_step=on_step, make_client=Client, clock=loop)
    await client.start()
    rng = random.Random(seed)
    prefixes = [[rng.randrange(1000) for _ in range(PREFIX_TOKENS)] for _ in range(2)]
    tasks = []
    for number in range(NUM_REQUESTS):
        own = [rng.randrange(1000) for _ in range(OWN_TOKENS)]
        prompt = [*prefixes[number % 2], *own]
        asked = request(f"r{number}", prompt, max_tokens=MAX_TOKENS, ignore_eos=True)
        num_wanted = rng.randint(*(SHORT if number % 2 else LONG))
        tasks.append(asyncio.create_task(read(client, asked, num_wanted, outcome)))
        await asyncio.sleep(rng.expovariate(REQUESTS_PER_SECOND))
    await asyncio.gather(*tasks)
    outcome.num_moved += sum(status.num_offloaded for status in client.replicas)
    await client.close()


def test_a_burst_is_preempted_less_and_ends_sooner_with_offload() -> None:
    off, on = Outcome(), Outcome()
    for seed in SEEDS:
        run_virtually(burst(seed, off, offloads=False))
        run_virtually(burst(seed, on, offloads=True))
    assert off.num_moved == 0
    assert on.num_moved > 0
    assert on.num_preemptions < off.num_preemptions
    assert p99(on.first_s) < p99(off.first_s)
    assert p99(on.whole_s) < p99(off.whole_s)
