"""Life of native programs: many steps, errors, threads that come and go."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from random_model import HIDDEN, RandomLayer, RandomModel
from step_driver import Chunk, StepDriver
from takt.errors import ConfigError, EngineDeadError, InvariantError, ModelError
from takt.ops.create import num_usable_cpus
from takt.ops.native.ops import MAX_THREADS_PER_CPU, NativeOps
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.quant import QuantTensor, QuantType
from takt.types.step import StepLimits


def matrix(rows: int, cols: int) -> QuantTensor:
    raw = np.ones((rows, cols), dtype=np.float32).view(np.uint8)
    return QuantTensor(raw, QuantType.F32, (rows, cols))


def limits() -> StepLimits:
    return StepLimits(
        max_num_tokens=8,
        max_num_seqs=2,
        max_num_rows=8,
        max_blocks_per_seq=2,
        num_kv_groups=1,
        max_num_block_copies=1,
        max_num_history=1,
        max_num_biases=1,
        max_logprobs=0,
    )


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return RandomModel([RandomLayer(), RandomLayer(window=16)], vocab=64)


def num_native_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_ten_thousand_tiny_steps(model: RandomModel) -> None:
    ops = NativeOps(2)
    driver = model.drive(ops, max_logprobs=0)
    step, output = driver.step_input, driver.step_output
    expected = driver.step([Chunk(driver.new_sequence(), [5])])[0][0].token_id
    for step_id in range(10_000):
        step["header"][0] = step_id
        driver.program.run(step, output)
        assert output["header"][0] == step_id
        assert output["token_ids"][0] == expected
    assert output["header"][1] <= output["header"][2] <= time.monotonic_ns()
    ops.close()


def test_more_threads_than_cpus(model: RandomModel) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    results = []
    for num_threads in (1, min(9, MAX_THREADS_PER_CPU * num_usable_cpus())):
        ops = NativeOps(num_threads)
        driver = model.drive(ops, max_logprobs=0)
        results.append([r.token_id for r in driver.generate(prompt, 60)])
        ops.close()
    assert results[0] == results[1]


def test_programs_share_a_pool(model: RandomModel) -> None:
    ops = NativeOps(2)
    captured = model.drive(ops, max_logprobs=0)
    eager = model.drive(ops, eager=True, max_logprobs=0)
    first, second = captured.new_sequence(), eager.new_sequence()
    for token in (5, 9, 33, 2):
        results = [captured.step([Chunk(first, [token])]), eager.step([Chunk(second, [token])])]
        assert results[0] == results[1]
    ops.close()


def test_close_joins_the_threads(model: RandomModel) -> None:
    before = num_native_threads()
    ops = NativeOps(4)
    driver = model.drive(ops, max_logprobs=0)
    expected = driver.generate([1, 2, 3], 5)
    assert num_native_threads() == before + 3
    ops.close()
    ops.close()
    assert num_native_threads() == before
    driver.restart()
    assert driver.generate([1, 2, 3], 5) == expected


def test_an_idle_pool_uses_no_cpu(model: RandomModel) -> None:
    ops = NativeOps(3)
    driver = model.drive(ops, max_logprobs=0)
    driver.generate([1, 2, 3], 5)

    def cpu_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def used_by_waiting() -> float:
        start = cpu_seconds()
        time.sleep(0.5)
        return cpu_seconds() - start

    # Two workers that spun would use a second each time; the interpreter itself next to nothing.
    assert any(used_by_waiting() < 0.1 for _ in range(20))
    ops.close()


def test_an_aborted_pool_ends_steps(model: RandomModel) -> None:
    ops = NativeOps(2)
    driver = model.drive(ops, max_logprobs=0)
    sequence = driver.new_sequence()
    threading.Timer(0.05, ops.abort).start()
    with pytest.raises(EngineDeadError, match="aborted"):
        while True:
            driver.step([Chunk(sequence, [1])])
            sequence.num_tokens = 0
    ops.close()


def test_inputs_out_of_bounds_are_refused_and_harmless(model: RandomModel) -> None:
    ops = NativeOps(2)
    driver = model.drive(ops, max_logprobs=0)
    expected = driver.step([Chunk(driver.new_sequence(), [5, 6])])
    step = driver.step_input
    for name, index, value in (
        ("token_ids", 1, 64),
        ("slot_mapping", (1, 0), -1),
        ("row_tokens", 0, 2),
        ("seq_lens", 0, 5),
        ("header", 1, 513),
    ):
        good = int(step[name][index])
        step[name][index] = value
        with pytest.raises(InvariantError, match="step input"):
            driver.program.run(step, driver.step_output)
        step[name][index] = good
    driver.restart()
    assert driver.step([Chunk(driver.new_sequence(), [5, 6])]) == expected
    ops.close()


def test_eager_forward_must_repeat_itself() -> None:
    ops = NativeOps(1)
    table, other = ops.pack_linear([matrix(64, 32)]), ops.pack_linear([matrix(64, 32)])
    tables = [table]

    def forward() -> None:
        ops.sample(ops.logits(ops.embed(tables[0], 1.0), table, 0.0))

    driver = StepDriver(
        ops, forward, (KVGroupSpec((0,), None),), num_kv_heads=1, head_dim=32, eager=True
    )
    driver.step([Chunk(driver.new_sequence(), [1])])
    tables[0] = other
    with pytest.raises(InvariantError, match="same calls"):
        driver.step([Chunk(driver.new_sequence(), [1])])
    tables[0] = table
    driver.step([Chunk(driver.new_sequence(), [1])])


def test_what_cannot_be_captured_is_refused() -> None:
    ops = NativeOps(1)
    table = ops.pack_linear([matrix(64, HIDDEN)])
    odd = ops.pack_linear([matrix(24, HIDDEN)])
    norm = ops.pack_vector(np.ones(HIDDEN + 1))

    def capture(forward: object) -> None:
        ops.program(forward, limits(), max_position=32, eager=False)  # type: ignore[arg-type]

    with pytest.raises(InvariantError, match="outside"):
        ops.embed(table, 1.0)
    with pytest.raises(InvariantError, match="no operator"):
        capture(lambda: None)
    with pytest.raises(InvariantError, match="width 128, not 129"):
        capture(lambda: ops.norm(ops.embed(table, 1.0), norm, 1e-5))
    with pytest.raises(InvariantError, match="multiple of 16"):
        capture(lambda: ops.gated_mlp(ops.embed(table, 1.0), odd, table, "silu"))
    with pytest.raises(InvariantError, match="known: silu, gelu_tanh"):
        capture(lambda: ops.gated_mlp(ops.embed(table, 1.0), table, table, "relu"))
    with pytest.raises(InvariantError, match="outside"):
        ops.embed(table, 1.0)


def test_weights_that_do_not_agree_are_refused() -> None:
    ops = NativeOps(1)
    with pytest.raises(ModelError, match="equal columns"):
        ops.pack_linear([matrix(16, 32), matrix(16, 64)])
    with pytest.raises(ModelError, match="bias"):
        ops.pack_linear([matrix(16, 32)], np.zeros(15))


@pytest.mark.parametrize("num_threads", [0, -1, 5000, MAX_THREADS_PER_CPU * num_usable_cpus() + 1])
def test_impossible_numbers_of_threads_are_refused(num_threads: int) -> None:
    with pytest.raises(ConfigError, match="--num-threads"):
        NativeOps(num_threads)


def test_kv_pool_larger_than_the_address_space_is_refused() -> None:
    spec = KVCacheSpec((KVGroupSpec((0,), None),), 8, 128, 16, KVDtype.BF16)
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        NativeOps(1).allocate_kv(spec, [2**40])


def test_default_threads_are_the_usable_cpus() -> None:
    ops = NativeOps()
    assert 1 <= ops.num_threads <= len(os.sched_getaffinity(0))
    ops.close()
