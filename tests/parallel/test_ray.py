"""Ranks as actors of a real Ray, on this host."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNode, wait_until_listening
from test_hosts import GREEDY, SIZES, answers

from free_port import free_port
from takt import LLM, SamplingParams
from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine import ray_cluster, ray_workers
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest
from takt.engine.proc_client import ProcessEngineClient
from takt.engine.replicas import ReplicatedEngineClient
from takt.errors import ConfigError, EngineDeadError
from takt.types.step_ids import replica_of

pytestmark = pytest.mark.oracle

ON_RAY: dict[str, Any] = SIZES | {"distributed_executor_backend": "ray", "num_threads": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray whose one node takes four ranks."""
    address = f"127.0.0.1:{free_port()}"
    node = RayNode("127.0.0.1", address, 4, head=True)
    try:
        wait_until_listening(address)
        yield address
    finally:
        node.close()


@pytest.fixture
def joined(cluster: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    monkeypatch.setattr(ray_workers, "PLACEMENT_SECONDS", 100.0)  # its port is open before that
    return cluster


@pytest.fixture(scope="module")
def expected(divisible: Callable[..., Path]) -> list[Any]:
    with LLM(str(divisible("gemma3")), num_threads=1, **SIZES) as llm:
        return answers(llm)


def test_actors_give_the_tokens_of_one_process(
    divisible: Callable[..., Path], expected: list[Any], joined: str
) -> None:
    model = str(divisible("gemma3"))
    with LLM(model, tensor_parallel_size=2, pipeline_parallel_size=2, **ON_RAY) as llm:
        assert answers(llm) == expected
        assert len(actor_pids()) == 4


def test_a_group_that_no_node_can_take_is_refused_with_what_there_is(
    divisible: Callable[..., Path], joined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "PLACEMENT_SECONDS", 1.0)
    sentence = r"within 1 s: asked for 5 x 1 takt_rank, each 1 on one node; .* \d of 4"
    for _ in range(60):  # what the test before has given back is free some time after it
        with pytest.raises(ConfigError, match=sentence) as refused:
            LLM(str(divisible("gemma3")), pipeline_parallel_size=5, **ON_RAY)
        if "4 of 4" in str(refused.value):
            break
    assert "4 of 4" in str(refused.value)


def test_the_death_of_an_actor_is_told_and_mended(
    divisible: Callable[..., Path], joined: str
) -> None:
    config = EngineConfig(
        model=ModelConfigOptions(model=str(divisible("gemma3")), max_model_len=256),
        cache=CacheOptions(kv_cache_memory_bytes=8 << 20),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=32),
        parallel=ParallelOptions(pipeline_parallel_size=2, distributed_executor_backend="ray"),
    )

    async def work() -> None:
        client = ProcessEngineClient(config)
        await client.start()
        try:
            tokens: list[int] = []
            stream = asyncio.create_task(stream_until_told(client, tokens))
            while not tokens:
                await asyncio.sleep(0.001)
            os.kill(actor_pids()[-1], signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                await stream
            while client.state is not EngineState.READY or client.epoch == 1:
                await asyncio.sleep(0.01)
            assert len(await collect(client, "after", 3)) == 3
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(work(), 200))


def test_replicas_on_ray_give_the_tokens_of_one_process_and_survive_one_another(
    divisible: Callable[..., Path], joined: str
) -> None:
    path = str(divisible("gemma3"))
    with LLM(path, num_threads=1, **SIZES) as llm:
        expected = llm.generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids
    config = EngineConfig(
        model=ModelConfigOptions(model=path, max_model_len=256, dtype="float32", num_threads=1),
        cache=CacheOptions(kv_cache_memory_bytes=16 << 20),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=32),
        parallel=ParallelOptions(data_parallel_size=2, distributed_executor_backend="ray"),
    )

    async def work() -> None:
        seen: set[int] = set()
        client = ReplicatedEngineClient(config, on_step=lambda s: seen.add(replica_of(s.step_id)))
        await client.start()
        try:
            names = [f"r{i}" for i in range(4)]
            answers = await asyncio.gather(*(collect(client, name, 12) for name in names))
            assert answers == [expected] * 4
            assert seen == {0, 1}
            pids = actor_pids()
            assert len(pids) == 2
            os.kill(pids[0], signal.SIGKILL)
            while not sum(status.num_restarts for status in client.replicas):
                await asyncio.sleep(0.01)
            assert await collect(client, "meanwhile", 12) == expected
            while any(status.state is not EngineState.READY for status in client.replicas):
                await asyncio.sleep(0.01)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(work(), 200))


async def collect(
    client: ProcessEngineClient | ReplicatedEngineClient,
    name: str,
    max_tokens: int,
    tokens: list[int] | None = None,
) -> list[int]:
    """`tokens`, if given, grows while they come."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    tokens = [] if tokens is None else tokens
    async for output in client.generate(AddRequest(name, [5, 6, 7], sampling)):
        tokens += output.token_ids
    return tokens


async def stream_until_told(client: ProcessEngineClient, tokens: list[int]) -> None:
    """One request after the other, so that there is one whenever a rank dies."""
    for number in itertools.count():
        await collect(client, f"r{number}", 200, tokens)


LOCAL = """
import sys
from takt import LLM
with LLM(sys.argv[1], distributed_executor_backend="ray", num_threads=1, max_model_len=64,
         max_num_seqs=2, max_num_batched_tokens=32, kv_cache_memory_bytes=1 << 20) as llm:
    print(len(llm.generate([[1, 2]])[0].outputs[0].token_ids))
"""


def test_an_engine_without_a_cluster_starts_its_own_and_says_nothing(
    divisible: Callable[..., Path],
) -> None:
    # Ray's sockets have long names: pytest's own directory would leave no room for them.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as directory:
        environment = os.environ | {"RAY_TMPDIR": directory}
        environment.pop("RAY_ADDRESS", None)
        result = subprocess.run(
            [sys.executable, "-c", LOCAL, str(divisible("gemma3"))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) > 0


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:9", "RAY_ADDRESS 127.0.0.1:9 cannot be reached: no Ray runs there"),
        ("nonsense", "RAY_ADDRESS nonsense cannot be reached"),
        ("ray://127.0.0.1:9", "goes through Ray Client"),
        ("auto", "no Ray runs on this host"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_named(
    divisible: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    address: str,
    sentence: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ConfigError, match=sentence):
        LLM(str(divisible("gemma3")), **ON_RAY)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="make install EXTRA=ray"):
        ray_cluster.import_ray()


def actor_pids() -> list[int]:
    """Of ranks that run steps, by Ray's titles of processes, in the order of their start."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cmdline").read_bytes().startswith(b"ray::RankWorker"):
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)
