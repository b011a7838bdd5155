"""Ranks as processes of an engine: tokens, ends, and errors at start."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from takt import LLM, SamplingParams
from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine import rank_group
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest
from takt.engine.proc_client import ProcessEngineClient
from takt.engine.rank_wire import RankOrder, send, socket_pair
from takt.engine.wire import config_to_plain
from takt.errors import ConfigError, EngineDeadError, ModelError

pytestmark = pytest.mark.oracle

SIZES: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "kv_cache_memory_bytes": 8 << 20,
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(
    temperature=1.0, top_p=0.9, seed=3, max_tokens=12, ignore_eos=True, presence_penalty=0.5
)
PROMPTS = ["one", "a longer prompt, cut into several chunks", "", "two three"]


def answers(llm: LLM) -> list[list[int]]:
    prompts = [[7, 8], *PROMPTS[:2], PROMPTS[3]]
    return [
        answer.outputs[0].token_ids
        for params in (PARAMS, DRAWN)
        for answer in llm.generate(prompts, params)
    ]


ALONE_WITHOUT_NATIVE = """
import sys
sys.modules["takt._native"] = None
from takt import LLM, SamplingParams
options = {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 8 << 20}
with LLM(sys.argv[1], backend="torch", dtype="float32", **options) as llm:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for answer in llm.generate(["one", "a second one"], params):
        print(answer.outputs[0].token_ids)
"""


def test_one_rank_of_torch_needs_no_native_module(divisible: Callable[..., Path]) -> None:
    path = str(divisible("gemma3"))
    result = subprocess.run(
        [sys.executable, "-c", ALONE_WITHOUT_NATIVE, path],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")
    options = {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 8 << 20}
    with LLM(path, dtype="float32", num_threads=1, **options) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        answers = llm.generate(["one", "a second one"], params)
    expected = [f"{list(answer.outputs[0].token_ids)}" for answer in answers]
    assert result.stdout.splitlines() == expected


WITHOUT_NATIVE = """
import sys
sys.modules["takt._native"] = None
from takt import LLM
from takt.errors import ConfigError
try:
    LLM(sys.argv[1], backend="torch", **{sys.argv[2]: 2}, distributed_executor_backend=sys.argv[3])
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("size", "backend"), [("tensor_parallel_size", "mp"), ("pipeline_parallel_size", "ray")]
)
def test_ranks_without_the_native_module_are_refused_in_one_line(
    divisible: Callable[..., Path], size: str, backend: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_NATIVE, str(divisible("gemma3")), size, backend],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")
    (line,) = result.stdout.splitlines()
    assert "takt._native" in line
    assert "make install" in line


def test_a_rank_whose_engine_is_gone_ends_without_a_word() -> None:
    ours, theirs = socket_pair()
    with theirs:
        process = subprocess.Popen(
            [*rank_group.RANK_COMMAND, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
    with ours:
        send(ours, RankOrder(1, "/no/such/model", 1, 30, config_to_plain(EngineConfig())))
    _, errors = process.communicate(timeout=200)
    assert (process.returncode, errors) == (0, b"")


def test_a_rank_is_in_a_process_group_of_its_own() -> None:
    rank = rank_group._start(1)
    try:
        assert os.getpgid(rank.process.pid) == rank.process.pid
    finally:
        rank.connection.close()
        os.close(rank.sentinel)
    assert rank.process.wait(60) == 1, "it was told nothing"


@pytest.fixture(scope="module")
def expected(divisible: Callable[..., Path]) -> list[list[int]]:
    with LLM(str(divisible("gemma3")), dtype="float32", num_threads=1, **SIZES) as llm:
        return answers(llm)


@pytest.mark.parametrize("backend", ["mp", "inproc"])
def test_processes_and_threads_give_the_tokens_of_one(
    divisible: Callable[..., Path], expected: list[list[int]], backend: str
) -> None:
    with LLM(
        str(divisible("gemma3")),
        dtype="float32",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        distributed_executor_backend=backend,
        **SIZES,
    ) as llm:
        assert answers(llm) == expected
        if backend == "mp":
            assert len(rank_pids(os.getpid())) == 3
    assert not rank_pids(os.getpid())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_ranks_have_cpus_of_their_own_and_exchange_what_is_asked(
    divisible: Callable[..., Path],
) -> None:
    """Rounded sums give processes the tokens that they give threads; the caller is let go again."""
    path, usable = str(divisible("gemma3")), os.sched_getaffinity(0)
    options = {"tensor_parallel_size": 2, "all_reduce_dtype": "int8", "num_threads": 1, **SIZES}
    with LLM(path, distributed_executor_backend="inproc", **options) as llm:
        expected = answers(llm)
    with LLM(path, **options) as llm:
        assert answers(llm) == expected
        (pid,) = rank_pids(os.getpid())
        cpus = [os.sched_getaffinity(0), os.sched_getaffinity(pid)]
        assert len(cpus[0]) == len(cpus[1]) == 1 and not cpus[0] & cpus[1]
        assert cpus[0] | cpus[1] <= usable
    assert os.sched_getaffinity(0) == usable


def test_the_death_of_a_rank_is_told_and_mended(
    divisible: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config = EngineConfig(
        model=ModelConfigOptions(model=str(divisible("gemma3")), max_model_len=512),
        cache=CacheOptions(kv_cache_memory_bytes=8 << 20),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=32),
        parallel=ParallelOptions(tensor_parallel_size=2, pipeline_parallel_size=2),
    )

    async def work() -> None:
        client = ProcessEngineClient(config)
        await client.start()
        try:
            # Once in the middle of streams, once while the engine sleeps.
            for is_busy, number in ((True, 3), (False, 1)):
                pid = client.engine_pid
                assert pid is not None
                victim = rank_pids(pid)[number - 1]
                if is_busy:
                    streams: list[list[int]] = [[] for _ in range(4)]
                    tasks = [
                        asyncio.create_task(stream_until_told(client, f"stream{i}", tokens))
                        for i, tokens in enumerate(streams)
                    ]
                    while not all(streams):
                        await asyncio.sleep(0.001)
                else:
                    await asyncio.gather(*(collect(client, f"idle{i}", 20) for i in range(4)))
                os.kill(victim, signal.SIGKILL)
                if is_busy:
                    for result in await asyncio.gather(*tasks, return_exceptions=True):
                        assert isinstance(result, EngineDeadError)
                while client.engine_pid == pid and client.state is EngineState.READY:
                    await asyncio.sleep(0.001)
                if not is_busy:
                    # Once more while ranks are loaded again.
                    os.kill(await first_rank_of_another(client, pid), signal.SIGKILL)
                while client.state is not EngineState.READY or client.engine_pid == pid:
                    await asyncio.sleep(0.01)
                assert not rank_pids(pid), "the others have ended too"
                said = capfd.readouterr().err
                assert f"the engine died: rank {number} was ended by SIGKILL" in said
            assert len(await collect(client, "after", max_tokens=3)) == 3
        finally:
            await client.close()

    run(work())


async def first_rank_of_another(client: ProcessEngineClient, pid: int) -> int:
    """A rank of the engine that is started in place of `pid`, as soon as there is one."""
    while True:
        engine = client.engine_pid
        if engine is not None and engine != pid and (ranks := rank_pids(engine)):
            return ranks[0]
        await asyncio.sleep(0.001)


async def collect(
    client: ProcessEngineClient,
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


async def stream_until_told(client: ProcessEngineClient, name: str, tokens: list[int]) -> None:
    """One request after the other, so that there is one whenever a rank dies."""
    for number in itertools.count():
        await collect(client, f"{name}.{number}", 500, tokens)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 200))


def rank_pids(parent: int) -> list[int]:
    """Of the rank processes that `parent` started, zombies aside, in the order of their start."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, ppid = process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[:2]
            command = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if int(ppid) == parent and state != "Z" and b"takt.engine.rank_process" in command:
            found.append(int(process.name))
    return sorted(found)


FAILING = """
import socket, sys
from takt.engine.rank_wire import RankFailed, RankLoaded, receive, send
connection = socket.socket(fileno=int(sys.argv[1]))
order, _ = receive(connection)
if order.rank == 1:
    sys.exit(send(connection, RankLoaded(0, 0)) or receive(connection) and 0)
{last}
"""


@pytest.mark.parametrize(
    ("last", "error", "sentence"),
    [
        ("send(connection, RankFailed('this rank has no luck', 1))", ModelError, "^this rank has"),
        ("send(connection, RankFailed('--such a flag', 2))", ConfigError, "^--such a flag$"),
        ("sys.exit(7)", EngineDeadError, "^rank 2 ended with exit code 7$"),
        ("import os; os.kill(os.getpid(), 9)", EngineDeadError, "^rank 2 was ended by SIGKILL$"),
    ],
)
def test_a_rank_that_fails_at_start_says_why(
    divisible: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: str,
    error: type[Exception],
    sentence: str,
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(FAILING.format(last=last))
    monkeypatch.setattr(rank_group, "RANK_COMMAND", (sys.executable, str(script)))
    with pytest.raises(error, match=sentence):
        LLM(str(divisible("gemma3")), pipeline_parallel_size=3, **SIZES)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tensor_parallel_size": 3}, "4 attention heads .* sizes that work: 1, 2, 4$"),
        ({"pipeline_parallel_size": 9}, "6 layers; sizes that work: 1 to 6$"),
        ({"pipeline_parallel_size": 0}, "--pipeline-parallel-size must be at least 1"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            "uni runs one rank, not 2: use mp",
        ),
        (
            {"distributed_executor_backend": "mpi"},
            "'mpi' is not one of: auto, uni, mp, inproc, ray",
        ),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 4, "strict": True}, "--strict"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    divisible: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.setattr("takt.engine.load.num_usable_cpus", lambda: 2)
    monkeypatch.setattr(rank_group, "RANK_COMMAND", ("/nonexistent",))
    with pytest.raises(ConfigError, match=sentence):
        LLM(str(divisible("gemma3")), **options, **SIZES)


def test_more_ranks_than_cpus_is_a_warning_with_its_cost(
    divisible: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("takt.engine.load.num_usable_cpus", lambda: 2)
    options = {"pipeline_parallel_size": 3, "distributed_executor_backend": "inproc"}
    with LLM(str(divisible("gemma3")), **options, **SIZES):
        assert "3 ranks share 2 CPUs" in caplog.text
        assert "at least 1.5 times as long" in caplog.text
