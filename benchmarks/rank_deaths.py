"""Kills ranks at random moments: every client is told soon, and service comes back by itself.

    python benchmarks/rank_deaths.py             SmolLM2, TP 3 and PP 3: 20 kills each
    python benchmarks/rank_deaths.py --quick     4 kills each, one of each moment
    python benchmarks/rank_deaths.py -tp 1 -pp 4 one layout
    python benchmarks/rank_deaths.py --backend ray   ranks as actors of a Ray that the engine starts
    python benchmarks/rank_deaths.py -tp 3 --first 10   the last 10 of 20: a run may be had in parts

Which rank and when are drawn: while prompts are computed, in the middle of 8 streams, while the
engine sleeps, or again while it is being started after a kill. The bar: after each kill whatever a
client has open ends within 5 s, with its tokens or an error; requests that come while there is no
engine are answered as soon; and a request that follows the restart gets its tokens. Exit code 1 if
it does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
RESTART_SECONDS = 180.0
"""Longer than any restart takes: what is not back by then does not come back by itself."""
NUM_STREAMS = 8
NUM_KILLS = 20
LAYOUTS = {"mp": ((3, 1), (1, 3)), "ray": ((1, 2),)}
SEED = 5


class Moment(enum.Enum):
    PROMPTS = "prompts"
    STREAMS = "streams"
    IDLE = "idle"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Kill:
    moment: Moment
    victim: int
    """Place among the processes, the engine's in front. With mp it is rank 0; with ray no rank."""
    delay_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    told_s: float
    """Kill to the end of all that clients had open."""
    whole_s: float
    """Kill to the restarted engine's being ready."""


def draw(rng: random.Random, num_processes: int, num_kills: int) -> list[Kill]:
    """Each moment equally often, in random order, on random processes."""
    moments = [list(Moment)[i % len(Moment)] for i in range(num_kills)]
    rng.shuffle(moments)
    return [Kill(each, rng.randrange(num_processes), rng.uniform(0.0, 0.4)) for each in moments]


def rank_pids(engine_pid: int) -> list[int]:
    """Of the rank processes that an engine has started, zombies aside; actors are its Ray's."""
    parents, ranks = {}, []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, ppid = process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[:2]
            command = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        parents[int(process.name)] = int(ppid)
        if state != "Z" and (b"rank_process" in command or command.startswith(b"ray::RankWorker")):
            ranks.append(int(process.name))
    return sorted(rank for rank in ranks if engine_pid in _ancestors(rank, parents))


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


class Streams:
    """Requests of one turn, and how many tokens have come to each."""

    def __init__(self, client: ProcessEngineClient, turn: int, prompt_tokens: int) -> None:
        self.num_tokens = [0] * NUM_STREAMS
        self._client = client
        self.tasks = [
            asyncio.create_task(self._read(i, f"{turn}-{i}", prompt_tokens))
            for i in range(NUM_STREAMS)
        ]

    async def _read(self, index: int, name: str, prompt_tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
        prompt = [5 + (index + i) % 1000 for i in range(prompt_tokens)]
        async for output in self._client.generate(AddRequest(name, prompt, sampling)):
            self.num_tokens[index] += len(output.token_ids)

    async def all_begun(self) -> None:
        while not all(self.num_tokens):
            await asyncio.sleep(0.001)

    async def check_all_told(self) -> None:
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) for result in results), results


async def tokens_of(client: ProcessEngineClient, name: str, max_tokens: int = 3) -> int:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = AddRequest(name, [5, 6, 7], sampling)
    return sum([len(output.token_ids) async for output in client.generate(request)])


async def probe(client: ProcessEngineClient, name: str) -> None:
    """A request that comes just now: it gets tokens or an error."""
    try:
        await tokens_of(client, name)
    except EngineDeadError:
        return


async def victim_of(client: ProcessEngineClient, kill: Kill, not_pid: int | None) -> int:
    """The process to kill: of the engine that runs, or of the next one after `not_pid`."""
    while True:
        pid = client.engine_pid
        if pid is not None and pid != not_pid:
            pids = [pid, *rank_pids(pid)]
            if kill.victim < len(pids):
                return pids[kill.victim]
        await asyncio.sleep(0.001)


async def run_kill(client: ProcessEngineClient, kill: Kill, turn: int) -> Outcome:
    pid = client.engine_pid
    streams = None
    if kill.moment in (Moment.PROMPTS, Moment.STREAMS):
        streams = Streams(client, turn, 700 if kill.moment is Moment.PROMPTS else 3)
        if kill.moment is Moment.STREAMS:
            await streams.all_begun()
            await asyncio.sleep(kill.delay_s)
        else:
            await asyncio.sleep(kill.delay_s / 4)
    start = time.monotonic()
    if kill.moment is Moment.RESTART:
        os.kill(await victim_of(client, kill, None), signal.SIGKILL)
        os.kill(await victim_of(client, kill, pid), signal.SIGKILL)
        start = time.monotonic()
    else:
        os.kill(await victim_of(client, kill, None), signal.SIGKILL)
    if streams is not None:
        await streams.check_all_told()
    await probe(client, f"{turn}-probe")
    told_s = time.monotonic() - start
    while client.state is not EngineState.READY or client.engine_pid == pid:
        assert client.state is not EngineState.DEAD, "the engine was given up"
        await asyncio.sleep(0.005)
    whole_s = time.monotonic() - start
    assert pid is None or not rank_pids(pid), "a rank outlived its engine"
    assert await tokens_of(client, f"{turn}-after") == 3
    return Outcome(told_s, whole_s)


async def run(options: argparse.Namespace, layout: tuple[int, int]) -> list[Outcome]:
    tensor_size, num_stages = layout
    config = EngineConfig(
        model=ModelConfigOptions(model=options.model, max_model_len=2048),
        cache=CacheOptions(kv_cache_memory_bytes=384 << 20),
        scheduler=SchedulerOptions(max_num_seqs=16, max_num_batched_tokens=64),
        parallel=ParallelOptions(
            tensor_parallel_size=tensor_size,
            pipeline_parallel_size=num_stages,
            distributed_executor_backend=options.backend,
        ),
    )
    client = ProcessEngineClient(config)
    await client.start()
    outcomes = []
    try:
        rng = random.Random(f"{options.seed} {tensor_size} x {num_stages}")
        num_processes = tensor_size * num_stages + (options.backend == "ray")
        num_kills = len(Moment) if options.quick else NUM_KILLS
        kills = list(enumerate(draw(rng, num_processes, num_kills)))
        for turn, kill in kills[options.first :]:
            work = run_kill(client, kill, turn)
            outcomes.append(await asyncio.wait_for(work, RESTART_SECONDS))
            last = outcomes[-1]
            print(
                f"  process {kill.victim}, {kill.moment.value}: told in {last.told_s:.2f} s, "
                f"whole in {last.whole_s:.1f} s",
                flush=True,
            )
    finally:
        await client.close()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("-tp", type=int)
    parser.add_argument("-pp", type=int)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--backend", choices=tuple(LAYOUTS), default="mp")
    parser.add_argument("--first", type=int, default=0, help="number of kills to leave out")
    options = parser.parse_args()
    layouts = LAYOUTS[options.backend]
    if options.tp is not None or options.pp is not None:
        layouts = ((options.tp or 1, options.pp or 1),)
    is_met = True
    for layout in layouts:
        print(
            f"TP {layout[0]} x PP {layout[1]}, {options.backend}, seed {options.seed}", flush=True
        )
        outcomes = asyncio.run(run(options, layout))
        slowest = max(outcome.told_s for outcome in outcomes)
        is_met = is_met and slowest <= BAR_SECONDS
        verdict = "met" if slowest <= BAR_SECONDS else "missed"
        print(
            f"{len(outcomes)} kills: all told within {slowest:.2f} s (bar: {BAR_SECONDS:g} s), "
            f"service whole again each time, within "
            f"{max(outcome.whole_s for outcome in outcomes):.1f} s: {verdict}"
        )
    sys.exit(0 if is_met or options.quick else 1)


if __name__ == "__main__":
    main()
