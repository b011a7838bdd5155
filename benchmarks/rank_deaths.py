"""Kills one rank after another under load: every client is told soon, and service comes back.

    python benchmarks/rank_deaths.py             SmolLM2, TP 3: 20 kills, 8 streams each
    python benchmarks/rank_deaths.py --quick     2 kills

The bar: each stream ends with an error within 5 s of the kill, and new ones run after the
restart.
Exit code 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest
from takt.engine.proc_client import ProcessEngineClient
from takt.errors import EngineDeadError
from takt.types.sampling_params import SamplingParams

BAR_SECONDS = 5.0
NUM_STREAMS = 8


def rank_pids(engine_pid: int) -> list[int]:
    """Of the rank processes that an engine has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ppid = process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
            command = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if int(ppid) == engine_pid and b"rank_process" in command:
            found.append(int(process.name))
    return sorted(found)


async def read(client: ProcessEngineClient, name: str, max_tokens: int) -> int:
    """Tokens of a stream that ends by itself."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    num_tokens = 0
    async for output in client.generate(AddRequest(name, [5, 6, 7], sampling)):
        num_tokens += len(output.token_ids)
    return num_tokens


async def kill_one(client: ProcessEngineClient, turn: int) -> float:
    """Seconds from the kill to the last stream's error; waits for the restart."""
    pid = client.engine_pid
    assert pid is not None
    tasks = [asyncio.create_task(read(client, f"{turn}-{i}", 500)) for i in range(NUM_STREAMS)]
    await asyncio.sleep(0.2 + 0.05 * (turn % 5))
    # The engine is rank 0: its death is one of those that the bar is about.
    victims = [pid, *rank_pids(pid)]
    start = time.monotonic()
    os.kill(victims[turn % len(victims)], signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    seconds = time.monotonic() - start
    assert all(isinstance(result, EngineDeadError) for result in results), results
    while client.state is not EngineState.READY or client.engine_pid == pid:
        await asyncio.sleep(0.01)
    assert not rank_pids(pid), "a rank outlived its engine"
    assert await read(client, f"{turn}-after", 3) == 3
    return seconds


async def run(options: argparse.Namespace) -> list[float]:
    config = EngineConfig(
        model=ModelConfigOptions(model=options.model, max_model_len=1024),
        cache=CacheOptions(kv_cache_memory_bytes=256 << 20),
        scheduler=SchedulerOptions(max_num_seqs=16, max_num_batched_tokens=64),
        parallel=ParallelOptions(
            tensor_parallel_size=options.tp, pipeline_parallel_size=options.pp
        ),
    )
    client = ProcessEngineClient(config)
    await client.start()
    try:
        return [await kill_one(client, turn) for turn in range(2 if options.quick else 20)]
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("-tp", type=int, default=3)
    parser.add_argument("-pp", type=int, default=1)
    options = parser.parse_args()
    times = asyncio.run(run(options))
    verdict = "met" if max(times) <= BAR_SECONDS else "missed"
    print(
        f"{len(times)} kills under {NUM_STREAMS} streams: all told within {max(times):.2f} s "
        f"(bar: {BAR_SECONDS:g} s), service whole again each time: {verdict}"
    )
    sys.exit(0 if max(times) <= BAR_SECONDS or options.quick else 1)


if __name__ == "__main__":
    main()
