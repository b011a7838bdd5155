"""Several engines behind one client: tokens, deaths, aborts and refusals."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from core_driver import engine_config, request
from engine_process import COMMAND, expected, make_request, run
from virtual_replicas import VirtualEngineClient, VirtualLoop, run_virtually

from takt.config import ParallelOptions
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest
from takt.engine.proc_client import ProcessEngineClient
from takt.engine.replicas import ReplicatedEngineClient
from takt.errors import EngineDeadError, EngineStartError, OverloadedError
from takt.scheduler.step_time import StepFeatures
from takt.types.step_ids import replica_of


@asynccontextmanager
async def replicas(
    behaviour: str = "fake",
    *,
    size: int = 2,
    on_dead: Any = None,
    on_step: Any = None,
    max_engine_deaths: int = 3,
    offloads: bool = True,
    **options: Any,
) -> AsyncIterator[ReplicatedEngineClient]:
    config = replace(
        engine_config(model=behaviour, **options),
        parallel=ParallelOptions(data_parallel_size=size, cooperative_offload=offloads),
    )
    client = ReplicatedEngineClient(
        config,
        on_dead=on_dead,
        on_step=on_step,
        max_engine_deaths=max_engine_deaths,
        make_client=partial(ProcessEngineClient, command=COMMAND),
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def collect(
    client: ReplicatedEngineClient, asked: AddRequest, tokens: list[list[int]] | None = None
) -> list[list[int]]:
    """Tokens of each choice; they are in `tokens` as they come."""
    tokens = [] if tokens is None else tokens
    tokens[:] = [[] for _ in range(asked.sampling.n)]
    async for output in client.generate(asked):
        tokens[output.choice] += output.token_ids
    return tokens


async def all_ready(client: ReplicatedEngineClient) -> None:
    while any(status.state is not EngineState.READY for status in client.replicas):
        await asyncio.sleep(0.005)


def test_both_replicas_serve_and_nothing_is_mixed_up() -> None:
    async def work() -> None:
        rng = random.Random(3)
        steps: Counter[int] = Counter()
        async with replicas(on_step=lambda s: steps.update([replica_of(s.step_id)])) as client:
            asked = [make_request(f"r{i}", rng, n=rng.choice([1, 1, 3])) for i in range(80)]
            answers = await asyncio.gather(*(collect(client, each) for each in asked))
            assert answers == [expected(each) for each in asked]
            assert client.num_outstanding == 0
        assert set(steps) == {0, 1}

    run(work())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_replicas_requests_go_on_elsewhere_if_nothing_was_streamed(
    victim: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    held = tmp_path / "held"
    held.touch()

    async def work() -> None:
        rng = random.Random(4)
        async with replicas(f"fake:hold={held}", max_num_seqs=2) as client:
            asked = [make_request(f"{i}", rng, max_tokens=10, ignore_eos=True) for i in range(8)]
            tokens: list[list[list[int]]] = [[] for _ in asked]

            def send(numbers: range) -> list[asyncio.Task[list[list[int]]]]:
                return [asyncio.create_task(collect(client, asked[i], tokens[i])) for i in numbers]

            # One on each has a token, and no step but the first ends before the file is gone.
            tasks = send(range(2))
            while not all(got and got[0] for got in tokens[:2]):
                await asyncio.sleep(0.001)
            assert [status.num_outstanding for status in client.replicas] == [1, 1]
            tasks += send(range(2, 8))
            while client.num_outstanding < 8:
                await asyncio.sleep(0.001)
            pid = client.replicas[victim].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            held.unlink()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            told = [isinstance(result, EngineDeadError) for result in results]
            assert sorted(told[:2]) == [False, True], "the one that had begun there"
            assert not any(told[2:])
            for each, result in zip(asked, results, strict=True):
                if isinstance(result, EngineDeadError):
                    assert f"replica {victim} died (SIGKILL)" in str(result)
                else:
                    assert result == expected(each)
            assert client.state is EngineState.READY
            await all_ready(client)
            restarts = [status.num_restarts for status in client.replicas]
            assert restarts == [int(number == victim) for number in range(2)]
            asked = [make_request(f"last{i}", rng) for i in range(4)]
            answers = await asyncio.gather(*(collect(client, each) for each in asked))
            assert answers == [expected(each) for each in asked]

    run(work())


def test_a_request_that_kills_two_engines_is_not_given_a_third() -> None:
    async def work() -> None:
        last_words: list[str] = []
        async with replicas(
            "fake:die-after=1", size=3, on_dead=last_words.append, max_engine_deaths=1
        ) as client:
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await collect(client, request("a", [1, 2], max_tokens=4))
            states = [status.state for status in client.replicas]
            assert states.count(EngineState.READY) == 1
            assert client.state is EngineState.READY
            while len(last_words) < 2:
                await asyncio.sleep(0.005)
        for sentence in last_words:
            assert sentence.startswith("replica "), "the server ends with it"
            assert "died 1 times in a row" in sentence

    run(work())


def test_with_no_replica_left_there_is_an_error_and_then_service(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()

    async def work() -> None:
        async with replicas(f"fake:hold={held}") as client:
            asked = request("a", [1, 2], max_tokens=200, ignore_eos=True)
            tokens: list[list[int]] = []
            task = asyncio.create_task(collect(client, asked, tokens))
            while not (tokens and tokens[0]):
                await asyncio.sleep(0.001)
            for status in client.replicas:
                assert status.pid is not None
                os.kill(status.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                await task
            while client.state is EngineState.READY:
                await asyncio.sleep(0.001)
            assert client.state is EngineState.RESTARTING
            with pytest.raises(EngineDeadError, match="no replica"):
                await collect(client, request("b", [1], max_tokens=1))
            await all_ready(client)
            held.unlink()
            again = request("c", [1, 2], max_tokens=4)
            assert await collect(client, again) == expected(again)

    run(work())


def test_a_replica_that_cannot_start_ends_the_start_with_its_error() -> None:
    async def work() -> None:
        with pytest.raises(EngineStartError, match="--max-model-len 9 is wrong"):
            async with replicas("fake:refuse"):
                pass

    run(work())


def test_a_request_is_refused_only_if_no_replica_takes_it_and_aborts_reach_the_right_one(
    tmp_path: Path,
) -> None:
    held = tmp_path / "held"
    held.write_text("6")

    async def work() -> None:
        limits = {"max_num_seqs": 2, "max_num_waiting": 1}
        # Both replicas make their few steps when two requests each are there.
        async with replicas(f"fake:gather=2,hold={held}", **limits) as client:
            asked = [request(f"r{i}", [i + 1], max_tokens=200, ignore_eos=True) for i in range(4)]
            streams = [client.generate(each) for each in asked]
            firsts = await asyncio.gather(*(anext(stream) for stream in streams))
            assert all(output.token_ids for output in firsts)
            assert [status.num_outstanding for status in client.replicas] == [2, 2]
            waiting = [
                asyncio.create_task(collect(client, request(f"w{i}", [9], max_tokens=200)))
                for i in range(2)
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [status.num_outstanding for status in client.replicas] == [3, 3]
            with pytest.raises(OverloadedError, match="--max-num-waiting"):
                await collect(client, request("more", [1], max_tokens=1))
            for each, stream in zip(asked[1:], streams[1:], strict=True):
                client.abort(each.request_id)
                reasons = [output.finish_reason async for output in stream]
                assert reasons[-1] == "abort"
            await streams[0].aclose()
            for i, task in enumerate(waiting):
                client.abort(f"w{i}")
                await task
            client.abort("nobody")
            assert client.num_outstanding == 0
            held.unlink()
            last = request("last", [1], max_tokens=2)
            assert await collect(client, last) == expected(last)

    run(work())


class SteadyClient(VirtualEngineClient):
    """Whose replicas are equally fast: a slower one may be no good place for a cached prompt."""

    @staticmethod
    def step_ns(step: StepFeatures) -> float:
        return 1e6 + 1e5 * (step.num_decode_seqs + step.num_prefill_tokens)


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        config = engine_config(kv_cache_memory_bytes=1 << 16, num_threads=1)
        config = replace(config, parallel=ParallelOptions(data_parallel_size=2))
        client = ReplicatedEngineClient(config, make_client=SteadyClient, clock=loop)
        await client.start()
        try:
            shared = list(range(1, 65))
            cached = []
            for i in range(6):
                other = request(f"other{i}", [100 + i] * 20, max_tokens=2)
                await collect(client, other)
                asked = request(f"shared{i}", [*shared, 500 + i], max_tokens=2)
                outputs = [output async for output in client.generate(asked)]
                cached.append(outputs[0].num_cached_tokens)
            assert cached == [0, 64, 64, 64, 64, 64]
        finally:
            await client.close()

    run_virtually(work())
