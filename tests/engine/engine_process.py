"""A client with a fake engine process, and what its requests should bring."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from core_driver import engine_config, request
from fake_model import VOCAB_SIZE, WINDOW, expected_tokens

from takt.engine.client import EngineState
from takt.engine.messages import AddRequest
from takt.engine.proc_client import ProcessEngineClient

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_engine_process.py")))


def run(work: Coroutine[Any, Any, None], timeout: float = 200) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, timeout)

    asyncio.run(limited())


@asynccontextmanager
async def engine(
    behaviour: str = "fake", on_dead: Any = None, on_step: Any = None, **options: Any
) -> AsyncIterator[ProcessEngineClient]:
    client = ProcessEngineClient(
        engine_config(model=behaviour, **options),
        on_dead=on_dead,
        on_step=on_step,
        command=COMMAND,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def collect(client: ProcessEngineClient, asked: AddRequest) -> list[list[int]]:
    """Tokens of each choice."""
    tokens: list[list[int]] = [[] for _ in range(asked.sampling.n)]
    async for output in client.generate(asked):
        tokens[output.choice] += output.token_ids
    return tokens


def expected(asked: AddRequest) -> list[list[int]]:
    return [
        expected_tokens(asked.prompt_token_ids, asked.sampling, choice=choice, window=WINDOW)
        for choice in range(asked.sampling.n)
    ]


def make_request(name: str, rng: random.Random, **sampling: Any) -> AddRequest:
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40))]
    options = {"max_tokens": rng.randint(1, 20), "temperature": 1.0, "seed": rng.getrandbits(64)}
    return request(name, prompt, **{**options, **sampling})


async def until_idle(pid: int) -> None:
    """Until a process has used next to no CPU time in half a second; one that spins never does."""

    def ticks() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    for _ in range(100):
        before = ticks()
        await asyncio.sleep(0.5)
        if ticks() - before <= 2:
            return
    raise AssertionError("an idle engine must not use a CPU")


async def ready(client: ProcessEngineClient) -> None:
    while client.state is not EngineState.READY:
        await asyncio.sleep(0.005)
