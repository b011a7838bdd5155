"""The engine process with a real model: many streams, a kill, and no work when idle."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Coroutine
from typing import Any

import pytest
from core_driver import engine_config, request
from engine_process import until_idle

from takt import LLM
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest, StepStats
from takt.engine.proc_client import ProcessEngineClient
from takt.errors import EngineDeadError

pytestmark = pytest.mark.model

OPTIONS: dict[str, Any] = {
    "model": "smollm2-135m",
    "max_model_len": 256,
    "max_num_seqs": 512,
    "max_num_batched_tokens": 1024,
    "kv_cache_memory_bytes": 256 << 20,
}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 200))


async def collect(client: ProcessEngineClient, asked: AddRequest) -> list[int]:
    tokens: list[int] = []
    async for output in client.generate(asked):
        tokens += output.token_ids
    return tokens


async def stream_until_told(client: ProcessEngineClient) -> None:
    """One request after the other: whenever the engine dies, there is one that runs."""
    for number in itertools.count():
        await collect(client, request(f"long{number}", [5, 6, 7], max_tokens=200, ignore_eos=True))


def test_512_streams_a_kill_and_idleness() -> None:
    rng = random.Random(1)
    asked = [
        request(
            f"r{i}",
            [rng.randrange(20, 49_152) for _ in range(rng.randint(1, 8))],
            temperature=1.0,
            seed=i,
            max_tokens=4,
            ignore_eos=True,
        )
        for i in range(512)
    ]
    few = asked[::32]
    with LLM(**{**OPTIONS, "max_num_seqs": 4}) as llm:
        prompts = [each.prompt_token_ids for each in few]
        answers = llm.generate(prompts, [each.sampling for each in few])
        expected = [answer.outputs[0].token_ids for answer in answers]

    async def work() -> None:
        stats: list[StepStats] = []
        stages: list[str] = []
        client = ProcessEngineClient(
            engine_config(**OPTIONS),
            lambda stage, done, total: stages.append(stage),
            on_step=stats.append,
        )
        await client.start()
        try:
            assert client.info.vocab_size == 49_152
            assert stages
            tokens = await asyncio.gather(*(collect(client, each) for each in asked))
            assert tokens[::32] == expected
            assert [len(each) for each in tokens] == [4] * 512
            assert stats[-1].kv_blocks_used == 0
            pid = client.engine_pid
            assert pid is not None
            await until_idle(pid)
            stream = asyncio.create_task(stream_until_told(client))
            num_steps = len(stats)
            while len(stats) < num_steps + 3:
                await asyncio.sleep(0.001)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                await stream
            while client.state is not EngineState.READY:
                await asyncio.sleep(0.01)
            assert await collect(client, few[0]) == expected[0]
        finally:
            await client.close()

    run(work())
