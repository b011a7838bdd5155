"""Two hosts, as namespaces that share nothing but a cable, with a Ray node on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_nodes import QUIET, Host, RayNode, connect, wait_until_listening

from takt import LLM, SamplingParams

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

IPS = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
ADDRESS = f"{IPS[0]}:6379"

JOINED = """
import os, sys, time, ray
ray.init(address=os.environ["RAY_ADDRESS"], logging_level=40, log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.1)
ray.shutdown()
"""
"""Both nodes are there."""

PROGRAM = """
import json, sys
from takt import LLM, SamplingParams
with LLM(sys.argv[1], **json.loads(sys.argv[2])) as llm:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers = llm.generate([[7, 8], "a longer prompt, cut into several chunks"], params)
    print(json.dumps([answer.outputs[0].token_ids for answer in answers]))
"""
DEATH = """
import asyncio, itertools, json, sys
from takt.config import *
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest
from takt.engine.proc_client import ProcessEngineClient
from takt.errors import EngineDeadError
from takt.types.sampling_params import SamplingParams

async def read(client, name, max_tokens):
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    async for output in client.generate(AddRequest(name, [5, 6, 7], sampling)):
        yield len(output.token_ids)

async def work():
    client = ProcessEngineClient(EngineConfig(
        model=ModelConfigOptions(model=sys.argv[1], max_model_len=512, num_threads=1),
        cache=CacheOptions(kv_cache_memory_bytes=64 << 20),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=32),
        parallel=ParallelOptions(pipeline_parallel_size=2, distributed_executor_backend="ray"),
    ))
    await client.start()
    try:
        for number in itertools.count():
            async for _ in read(client, f"r{number}", 400):
                pass
            if number == 0:
                print("streaming", flush=True)
    except EngineDeadError:
        print("told", flush=True)
    while client.state is not EngineState.READY or client.epoch == 1:
        if client.state is EngineState.DEAD:
            sys.exit("the engine did not come back")
        await asyncio.sleep(0.01)
    print(sum([n async for n in read(client, "after", 3)]), "tokens", flush=True)
    await client.close()

asyncio.run(work())
"""
OPTIONS = {
    "dtype": "float32",
    "num_threads": 1,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "kv_cache_memory_bytes": 8 << 20,
}


@pytest.fixture
def hosts(divisible: Callable[..., Path], request: pytest.FixtureRequest) -> Iterator[list[Host]]:
    """Three, cabled to one switch."""
    if not request.config.getoption("--whole-matrix", default=False):
        pytest.skip("takes minutes: --whole-matrix")
    # Only a refusal by the kernel is a reason: hosts that fail for another one fail the test.
    if subprocess.run(["unshare", "-n", "-m", "-i", "-u", "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here (unshare -n -m -i -u)")
    model = divisible("gemma3")
    made: list[Host] = []
    try:
        made += [Host(f"host{i}", model) for i in range(len(IPS))]
        assert all(host.is_ready for host in made), [host.errors() for host in made]
        connect(made, IPS)
        yield made
    finally:
        for host in made:
            host.close()


def start_node(hosts: list[Host], index: int) -> RayNode:
    """With room for one rank."""
    node = RayNode(IPS[index], ADDRESS, 1, head=index == 0, inside=hosts[index].inside)
    wait_until_listening(ADDRESS, hosts[0].pid)
    return node


def start_program(host: Host, program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*host.inside, sys.executable, "-c", JOINED + program, Host.MODEL, *arguments],
        env=os.environ | QUIET | {"RAY_ADDRESS": ADDRESS},
        stdout=subprocess.PIPE,
        text=True,
    )


def check_line(program: subprocess.Popen[str], line: str) -> None:
    """The next one: Ray's own, when a node ends, are no output of the program."""
    assert program.stdout is not None
    assert program.stdout.readline() == f"{line}\n"


def test_stages_on_two_hosts_give_the_tokens_of_one_process(
    divisible: Callable[..., Path], hosts: list[Host]
) -> None:
    nodes = [start_node(hosts, index) for index in range(2)]
    options = OPTIONS | {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    try:
        program = start_program(hosts[0], PROGRAM, json.dumps(options))
        output, _ = program.communicate(timeout=250)
    finally:
        for node in nodes:
            node.close()
    assert program.returncode == 0
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(str(divisible("gemma3")), **OPTIONS) as llm:
        answers = llm.generate([[7, 8], "a longer prompt, cut into several chunks"], params)
    assert json.loads(output) == [answer.outputs[0].token_ids for answer in answers]


@pytest.mark.parametrize("end", ["power", "cable"])
def test_the_loss_of_a_host_is_told_and_another_takes_its_place(
    hosts: list[Host], end: str
) -> None:
    nodes = [start_node(hosts, index) for index in range(2)]
    program = start_program(hosts[0], DEATH)
    try:
        check_line(program, "streaming")
        nodes.append(start_node(hosts, 2))
        {"power": hosts[1].kill, "cable": hosts[1].unplug}[end]()
        check_line(program, "told")
        check_line(program, "3 tokens")
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()
        for node in nodes:
            node.close()
