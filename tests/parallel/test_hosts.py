"""Ranks on several hosts: what crosses between them, and what happens when it no longer does."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_workers import HERE, ThreadWorkers

from takt import LLM, SamplingParams
from takt.config import EngineConfig, ParallelOptions
from takt.engine.rank_worker import RankWorker
from takt.engine.remote_ranks import RemoteRanks
from takt.errors import ConfigError, EngineDeadError
from takt.parallel import host_link
from takt.parallel.host_link import LinkHub
from takt.parallel.host_map import HostMap, host_key
from takt.parallel.layout import ParallelLayout
from takt.parallel.segment_door import SegmentDoor, fetch_segment
from takt.parallel.step_packing import pack, unpack, used_input, used_output
from takt.types.step import StepInput, StepLimits, StepOutput

SIZES: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "kv_cache_memory_bytes": 8 << 20,
    "dtype": "float32",
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(
    temperature=1.0, top_p=0.9, seed=3, max_tokens=12, ignore_eos=True, presence_penalty=0.5
)
SCORED = SamplingParams(temperature=0.0, max_tokens=3, logprobs=4, prompt_logprobs=2)
PROMPTS = ["one", "a longer prompt, cut into several chunks of a step", "two three"]
LIMITS = StepLimits(
    max_num_tokens=16,
    max_num_seqs=4,
    max_num_rows=6,
    max_blocks_per_seq=5,
    num_kv_groups=2,
    max_num_block_copies=3,
    max_num_history=9,
    max_num_biases=7,
    max_logprobs=3,
)


# -- hosts ------------------------------------------------------------------------------------
def test_hosts_are_numbered_from_the_engine_s() -> None:
    host_map = HostMap.of(ParallelLayout(2, 3), "here", ["a", "a", "here", "here", "a", "a"])
    assert host_map.hosts == (1, 1, 0, 0, 1, 1)
    assert (host_map.hops, host_map.leaders, host_map.sampling_host) == ([0, 1], [2, 0], 1)
    assert list(host_map.remote_hosts) == [1]


def test_an_engine_may_have_no_rank_on_its_host() -> None:
    host_map = HostMap.of(ParallelLayout(1, 2), "here", ["a", "b"])
    assert host_map.hosts == (1, 2)
    assert (host_map.hops, host_map.leaders) == ([0], [0, 1])


def test_a_group_on_two_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="stage 1 are on 2 hosts"):
        HostMap.of(ParallelLayout(2, 2), "a", ["a", "a", "a", "b"])


def test_processes_of_this_host_agree_on_its_key() -> None:
    assert host_key() == host_key() != ""


# -- shared memory of strangers ---------------------------------------------------------------
def test_a_door_hands_out_the_file_and_is_gone_once_closed() -> None:
    fd = os.memfd_create("test")
    os.write(fd, b"what ranks share")
    door = SegmentDoor(fd)
    fetched = fetch_segment(door.name)
    assert os.pread(fetched, 64, 0) == b"what ranks share"
    os.close(fetched)
    door.close()
    os.close(fd)
    with pytest.raises(EngineDeadError, match="shared memory of this host is gone"):
        fetch_segment(door.name)


# -- what crosses -----------------------------------------------------------------------------
def random_step(rng: np.random.Generator) -> StepInput:
    """Every byte random but those that say how much of the others is used."""
    step = StepInput(LIMITS)
    step.buffer[:] = rng.integers(0, 256, step.buffer.shape, dtype=np.uint8)
    num_rows = int(rng.integers(0, LIMITS.max_num_rows + 1))
    num_seqs = int(rng.integers(0, LIMITS.max_num_seqs + 1))
    num_tokens = int(rng.integers(num_seqs, LIMITS.max_num_tokens + 1))
    copies = int(rng.integers(0, LIMITS.max_num_block_copies + 1))
    step["header"][:5] = rng.integers(1 << 40), num_tokens, num_seqs, num_rows, copies
    step["seq_lens"][:] = rng.integers(1, 16 * LIMITS.max_blocks_per_seq + 1, LIMITS.max_num_seqs)
    for name, most in (
        ("history_start", LIMITS.max_num_history),
        ("bias_start", LIMITS.max_num_biases),
    ):
        step[name][:] = np.sort(rng.integers(0, most + 1, LIMITS.max_num_rows + 1))
    return step


@pytest.mark.parametrize("seed", range(20))
def test_the_used_parts_of_a_step_arrive_and_no_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    step, arrived = random_step(rng), StepInput(LIMITS)
    payload = np.zeros(8192, dtype=np.uint8)
    end = pack(used_input(step, 16), payload, 16)
    unpack(payload[:end], 16, used_input(arrived, 16))
    for sent, got in zip(used_input(step, 16), used_input(arrived, 16), strict=True):
        np.testing.assert_array_equal(sent.view(np.uint8), got.view(np.uint8))
    num_tokens, num_seqs = step.num_tokens, step.num_seqs
    assert not arrived["token_ids"][num_tokens:].any()
    assert not arrived["block_tables"][:, num_seqs:].any()
    assert end <= 16 + step.layout.nbytes


def test_the_rows_of_an_output_arrive() -> None:
    output, arrived = StepOutput(LIMITS), StepOutput(LIMITS)
    output.buffer[:] = np.random.default_rng(1).integers(0, 256, output.buffer.shape)
    output["header"][3] = 2
    payload = np.zeros(4096, dtype=np.uint8)
    end = pack(used_output(output), payload, 0)
    unpack(payload[:end], 0, used_output(arrived))
    for name, view in output.views.items():
        rows = slice(None) if name == "header" else slice(2)
        assert view[rows].tobytes() == arrived[name][rows].tobytes()
        assert name == "header" or not arrived[name][2:].view(np.uint8).any()


def test_a_step_that_is_cut_short_is_an_error() -> None:
    step = random_step(np.random.default_rng(4))
    payload = np.zeros(8192, dtype=np.uint8)
    end = pack(used_input(step, 16), payload, 0)
    for wrong in (end - 8, end + 8):
        with pytest.raises(ValueError, match="a step of"):
            unpack(payload[:wrong], 0, used_input(StepInput(LIMITS), 16))


# -- links ------------------------------------------------------------------------------------
def test_a_link_carries_messages_in_order_and_tells_of_its_end() -> None:
    lost, is_lost = [], threading.Event()

    def lose(name: str) -> None:
        lost.append(name)
        is_lost.set()

    here, there = LinkHub("127.0.0.1", b"token", lose), LinkHub("127.0.0.1", b"token", lose)
    receiver = here.receiver("greetings", 1 << 20)
    sender = there.sender("greetings", receiver.address)
    receiver.accept()
    here.watch()
    host, _, port = receiver.address.removeprefix("tcp://").rpartition(":")
    socket.create_connection((host, int(port))).close()  # a stranger, whose end is nobody's loss
    for length in (1, 1 << 20, 8):
        sender.send(np.full(length, length % 251, dtype=np.uint8))
    for length in (1, 1 << 20, 8):
        message = receiver.receive()
        assert message is not None
        assert len(message) == length
        assert (message == length % 251).all()
    there.close()
    assert is_lost.wait(20)
    assert lost == ["greetings"]
    here.stop()
    assert receiver.receive() is None
    here.close()


def test_a_message_for_a_lost_connection_is_an_error_that_names_it() -> None:
    is_lost = threading.Event()
    here = LinkHub("127.0.0.1", b"token", print)
    there = LinkHub("127.0.0.1", b"token", lambda name: is_lost.set())
    receiver = here.receiver("greetings", 64)
    sender = there.sender("greetings", receiver.address)
    receiver.accept()
    there.watch()
    here.close()
    assert is_lost.wait(20)
    with pytest.raises(EngineDeadError, match=r"^the connection for greetings is lost$"):
        for _ in range(1000):
            sender.send(np.zeros(8, dtype=np.uint8))
    there.close()


def test_a_message_for_a_connection_that_was_closed_here_is_the_same_error() -> None:
    here, there = LinkHub("127.0.0.1", b"token", print), LinkHub("127.0.0.1", b"token", print)
    sender = there.sender("greetings", here.receiver("greetings", 64).address)
    there.close()
    with pytest.raises(EngineDeadError, match=r"^the connection for greetings is lost$"):
        sender.send(np.zeros(8, dtype=np.uint8))
    here.close()


def test_a_connection_without_the_token_is_refused() -> None:
    here, there = LinkHub("127.0.0.1", b"token", print), LinkHub("127.0.0.1", b"other", print)
    receiver = here.receiver("greetings", 64)
    there.sender("greetings", receiver.address)
    with pytest.raises(ConfigError, match="a stranger has connected"):
        receiver.accept()
    here.close()
    there.close()


def test_a_host_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_link, "CONNECT_SECONDS", 0.1)
    hub = LinkHub("127.0.0.1", b"token", print)
    with pytest.raises(ConfigError, match=r"cannot reach tcp://127\.0\.0\.1:9 within 0\.1 s"):
        hub.sender("greetings", "tcp://127.0.0.1:9")
    with pytest.raises(ConfigError, match="nobody has connected"):
        hub.receiver("silence", 64).accept()
    hub.close()


# -- tokens -----------------------------------------------------------------------------------
def answers(llm: LLM) -> list[Any]:
    return [
        (answer.outputs[0].token_ids, answer.outputs[0].finish_reason)
        for params in (GREEDY, DRAWN, SCORED)
        for answer in llm.generate([[7, 8], *PROMPTS], params)
    ]


@pytest.fixture(scope="module")
def expected(divisible: Callable[..., Path]) -> list[Any]:
    with LLM(str(divisible("gemma3")), num_threads=1, **SIZES) as llm:
        return answers(llm)


@pytest.fixture
def on_hosts(
    divisible: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[LLM, list[RankWorker]]]:
    """An engine with a rank on each of the hosts named, and its ranks."""

    def make(tensor_size: int, keys: Sequence[str], **options: Any) -> tuple[LLM, list[RankWorker]]:
        made: list[ThreadWorkers] = []

        def workers(layout: ParallelLayout) -> ThreadWorkers:
            made.append(ThreadWorkers(layout, keys))
            return made[0]

        monkeypatch.setattr("takt.engine.ray_workers.RayWorkers", workers)
        llm = LLM(
            str(divisible("gemma3")),
            tensor_parallel_size=tensor_size,
            pipeline_parallel_size=len(keys) // tensor_size,
            distributed_executor_backend="ray",
            **(SIZES | options),
        )
        return llm, made[0].workers

    return make


@pytest.mark.parametrize(
    ("tensor_size", "keys"),
    [
        (1, [HERE]),
        (1, ["away"]),
        (2, [HERE, HERE, "away", "away"]),
        (2, ["away", "away", HERE, HERE]),
        (1, ["far", "away", HERE, "far"]),
    ],
)
def test_hosts_give_the_tokens_of_one_process(
    on_hosts: Callable[..., Any], expected: list[Any], tensor_size: int, keys: list[str]
) -> None:
    llm, _ = on_hosts(tensor_size, keys)
    with llm:
        assert answers(llm) == expected


def run_until_dead(llm: LLM) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    with llm:
        for _ in range(1000):
            llm.generate([[5, 6]], long)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_host_that_fails_ends_the_steps_with_its_reason(
    on_hosts: Callable[..., Any], failing: int
) -> None:
    llm, workers = on_hosts(1, [HERE, "away", "far"])
    bridge = workers[failing]._bridge
    threading.Timer(0.2, lambda: bridge.end("the host is on fire")).start()
    with pytest.raises(EngineDeadError, match=r"^the host is on fire$"):
        run_until_dead(llm)


def test_a_host_that_vanishes_ends_the_steps(on_hosts: Callable[..., Any]) -> None:
    llm, workers = on_hosts(1, [HERE, "away"])
    threading.Timer(0.2, workers[1]._bridge.close).start()
    with pytest.raises(EngineDeadError, match=r"^the connection for .* is lost$"):
        run_until_dead(llm)


def test_a_rank_s_own_error_is_the_engine_s(
    on_hosts: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError("this host lacks something")

    monkeypatch.setattr("takt.engine.rank_worker.RankModel", refuse)
    monkeypatch.setattr(RankWorker, "close", lambda self: None)
    with pytest.raises(ConfigError, match=r"^this host lacks something$"):
        on_hosts(1, [HERE, "away"])


@pytest.mark.parametrize(
    ("num_replicas", "max_ranks", "num_threads"),
    [
        (1, 8, [3, 3, 6]),
        (2, 8, [1, 1, 1]),
        (2, 3, [2, 2, 2]),
        (2, 1, [3, 3, 6]),
        (2, None, [1] * 3),
    ],
)
def test_threads_share_a_host_with_ranks_of_all_replicas_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
    num_replicas: int,
    max_ranks: int | None,
    num_threads: list[int],
) -> None:
    monkeypatch.setattr("takt.engine.rank_worker.num_usable_cpus", lambda: 6)
    monkeypatch.setattr(RankWorker, "close", lambda self: None)  # nothing was loaded
    parallel = ParallelOptions(
        pipeline_parallel_size=3,
        data_parallel_size=num_replicas,
        distributed_executor_backend="ray",
    )
    layout = ParallelLayout(num_stages=3)
    ranks = RemoteRanks(
        ThreadWorkers(layout, ["away", "away", "far"], max_ranks), EngineConfig(parallel=parallel)
    )
    assert ranks.num_threads == num_threads
    ranks.close()


def test_the_least_host_bounds_the_kv_pool(
    on_hosts: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("takt.engine.rank_worker.available_memory_bytes", lambda: 2 << 20)
    llm, _ = on_hosts(1, [HERE, "away", "away", "away"], kv_cache_memory_bytes=None)
    with llm:
        spec, sizes = llm.kv_cache, llm._core.sizes
        num_bytes = sum(n * spec.block_bytes(g) for g, n in enumerate(sizes.num_blocks))
        # Half of 2 MiB is free for the three quarters that are on one host.
        assert num_bytes <= (1 << 20) * 4 / 3
