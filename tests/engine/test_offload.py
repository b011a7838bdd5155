"""Requests move between replicas, and blocks to host memory, and no token changes by it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from core_driver import Collector, make_core, request
from engine_process import expected, make_request, run
from fake_model import WINDOW, expected_tokens, fake_model
from test_replicas import collect, replicas

from takt.config import ParallelOptions
from takt.engine.messages import StepStats
from takt.types.sampling_params import SamplingParams
from takt.types.step_ids import replica_of

KIB = 2**-20
"""In GiB."""


def test_requests_move_to_a_replica_with_room_and_keep_their_tokens(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("8")
    steps: list[StepStats] = []

    def on_step(stats: StepStats) -> None:
        """The first replica is never far ahead of what was looked at, however late that is."""
        steps.append(stats)
        if held.exists():
            held.write_text(str(8 + sum(replica_of(step.step_id) == 0 for step in steps)))

    async def work() -> None:
        rng = random.Random(5)
        async with replicas(
            f"fake:sleep=3,hold={held}",
            on_step=on_step,
            kv_cache_memory_bytes=32 << 10,
            kv_reservation="optimistic",
            max_num_seqs=16,
            max_num_batched_tokens=16,
        ) as client:
            asked = [
                make_request(f"r{i}", rng, max_tokens=100, min_tokens=90, ignore_eos=True)
                for i in range(24)
            ]
            tasks = [asyncio.create_task(collect(client, each)) for each in asked]
            while sum(step.num_preempted for step in steps) < 1:
                await asyncio.sleep(0.002)
            alive = client._journeys
            left = [
                i
                for i, each in enumerate(asked)
                if each.request_id in alive and alive[each.request_id].replica == 1
            ]
            for i in left:
                client.abort(asked[i].request_id)
            while not sum(status.num_offloaded for status in client.replicas):
                await asyncio.sleep(0.002)
            held.unlink()
            answers = await asyncio.gather(*tasks)
            for i, (each, answer) in enumerate(zip(asked, answers, strict=True)):
                if i not in left:
                    assert answer == expected(each)
            assert client.num_outstanding == 0

    run(work())


def test_with_offload_switched_off_nothing_moves() -> None:
    assert ParallelOptions().cooperative_offload

    async def work() -> None:
        rng = random.Random(5)
        async with replicas("fake", offloads=False, kv_cache_memory_bytes=128 << 10) as client:
            asked = [make_request(f"r{i}", rng, max_tokens=60) for i in range(24)]
            answers = await asyncio.gather(*(collect(client, each) for each in asked))
            assert answers == [expected(each) for each in asked]
            assert [status.num_offloaded for status in client.replicas] == [0, 0]

    run(work())


def test_prefixes_survive_in_host_memory() -> None:
    """The model reads the cache: a wrong or missing copy changes its tokens."""
    core = make_core(
        fake_model(window=WINDOW),
        kv_cache_memory_bytes=8 << 10,
        kv_offloading_size=256 * KIB,
        max_num_seqs=4,
    )
    rng = random.Random(6)
    prefixes = [[rng.randrange(1000) for _ in range(64)] for _ in range(6)]
    collector, wanted, num_cached = Collector(), {}, 0
    for i in range(60):
        prompt = [*rng.choice(prefixes), *(rng.randrange(1000) for _ in range(rng.randint(1, 20)))]
        asked = request(f"r{i}", prompt, max_tokens=4, n=rng.choice([1, 1, 2]))
        wanted[f"r{i}"] = asked
        core.add(asked)
        if rng.random() < 0.5:
            core.offload_cold(rng.choice([0.0, 0.6]))
        if rng.random() < 0.6:
            collector.run(core)
    collector.run(core)
    for name, asked in wanted.items():
        for choice in range(asked.sampling.n):
            tokens = expected_tokens(
                asked.prompt_token_ids, asked.sampling, choice=choice, window=WINDOW
            )
            assert collector[name, choice].token_ids == tokens
        num_cached += collector[name, 0].num_cached_tokens
    assert sum(stats.num_offloaded_blocks for stats in collector.stats) > 0
    assert sum(stats.num_restored_blocks for stats in collector.stats) > 0
    assert num_cached > 0


def test_host_memory_makes_hits_of_misses() -> None:
    def cached(gib: float | None) -> int:
        core = make_core(
            fake_model(), kv_cache_memory_bytes=16 * 256, kv_offloading_size=gib, max_num_seqs=1
        )
        collector = Collector()
        for turn in range(3):
            for tenant in range(3):
                prompt = [tenant * 100 + i for i in range(96)]
                core.add(request(f"{turn}-{tenant}", [*prompt, turn], max_tokens=2))
                collector.run(core)
                core.offload_cold(0.0)
        return sum(collector[f"2-{tenant}"].num_cached_tokens for tenant in range(3))

    assert cached(None) < 3 * 96
    assert cached(64 * KIB) == 3 * 96


def test_what_is_left_of_a_request_is_a_request() -> None:
    from takt.engine.offloading import Journey
    from takt.scheduler.replica_load import Work
    from takt.scheduler.routing import Route

    asked = request("a", [1, 2, 3], max_tokens=10, min_tokens=4, seed=5, temperature=1.0)
    journey = Journey(asked, Route(Work(3, 1, 10), ()))
    assert journey.rest() is asked
    assert journey.can_resume
    journey.token_ids = expected_tokens([1, 2, 3], asked.sampling, max_tokens=6)
    rest = journey.rest()
    assert rest.sampling == SamplingParams(temperature=1.0, max_tokens=4, min_tokens=0, seed=5)
    whole = expected_tokens([1, 2, 3], asked.sampling)
    assert expected_tokens(rest.prompt_token_ids, rest.sampling) == whole[6:]
    for sampling in ({"n": 2}, {"repetition_penalty": 1.1}, {"prompt_logprobs": 0}):
        other = request("b", [1], max_tokens=10, **sampling)
        assert not Journey(other, Route(Work(1, 1, 10), ())).can_resume
