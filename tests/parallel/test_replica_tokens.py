"""Replicas of real models, with ranks of their own, give the tokens of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from takt import LLM, SamplingParams
from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine.messages import AddRequest
from takt.engine.replicas import ReplicatedEngineClient
from takt.types.step_ids import replica_of

pytestmark = pytest.mark.oracle

PROMPTS = [[7, 8], [5, 6, 7], list(range(40, 90)), [11] * 20]
PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)


async def generate(path: Path, tensor_parallel_size: int) -> tuple[list[list[int]], set[int]]:
    """Tokens of each prompt, and the replicas that made steps."""
    config = EngineConfig(
        model=ModelConfigOptions(model=str(path), dtype="float32", max_model_len=256),
        cache=CacheOptions(kv_cache_memory_bytes=16 << 20),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=32),
        parallel=ParallelOptions(tensor_parallel_size=tensor_parallel_size, data_parallel_size=2),
    )
    seen: set[int] = set()
    client = ReplicatedEngineClient(config, on_step=lambda s: seen.add(replica_of(s.step_id)))

    async def collect(name: str, prompt: list[int]) -> list[int]:
        outputs = client.generate(AddRequest(name, prompt, PARAMS))
        return [token async for output in outputs for token in output.token_ids]

    await client.start()
    try:
        work = (collect(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS))
        return await asyncio.gather(*work), seen
    finally:
        await client.close()


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_replicas_give_the_tokens_of_one_process(
    divisible: Callable[..., Path], tensor_parallel_size: int
) -> None:
    path = divisible("gemma3")
    with LLM(
        str(path),
        dtype="float32",
        num_threads=1,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        kv_cache_memory_bytes=8 << 20,
    ) as llm:
        expected = [answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, PARAMS)]
    tokens, seen = asyncio.run(asyncio.wait_for(generate(path, tensor_parallel_size), 200))
    assert tokens == expected
    assert seen == {0, 1}
