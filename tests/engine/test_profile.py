"""Profiled steps of a real core on a small random model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from random_model import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, RandomLayer, RandomModel
from takt.clock import MonotonicClock
from takt.config import CacheOptions, EngineConfig, ModelConfigOptions, SchedulerOptions
from takt.engine import profile
from takt.engine.build import LoadedModel
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.profile import DecodeShape, PrefillShape, Profiler
from takt.engine.sizing import EngineSizes, KVShape
from takt.errors import ConfigError, InvariantError
from takt.ops.native.ops import NativeOps
from takt.types.quant import QuantType

WINDOW = 20
CONFIG = EngineConfig(
    model=ModelConfigOptions(max_model_len=256),
    cache=CacheOptions(kv_cache_memory_bytes=16 << 20, enable_prefix_caching=False),
    scheduler=SchedulerOptions(max_num_batched_tokens=64, max_num_seqs=8),
)


def loaded_model(ops: NativeOps) -> LoadedModel:
    kinds = (QuantType.Q4_1,) * 7
    model = RandomModel(
        [
            RandomLayer(kinds=kinds),
            RandomLayer(kinds=kinds, window=WINDOW),
            RandomLayer(kinds=kinds),
        ],
        head=QuantType.Q8_0,
    )
    forward = model._forward(ops)

    def make_executor(sizes: EngineSizes) -> Executor:
        ops.allocate_kv(sizes.kv, sizes.num_blocks)
        return InlineExecutor(
            ops.program(forward, sizes.limits, max_position=sizes.max_model_len, eager=False)
        )

    return LoadedModel(
        kv_shape=KVShape(model.groups, KV_HEADS, HEAD_DIM, 256),
        vocab_size=model.vocab,
        eos_token_ids=frozenset(),
        precision="random",
        weight_bytes=0,
        num_threads=ops.num_threads,
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=ops.close,
    )


@pytest.fixture
def profiler() -> Iterator[Profiler]:
    made = Profiler(CONFIG, loaded_model(NativeOps(2)), MonotonicClock())
    yield made
    made.close()


def nothing(stage: str, done: int, total: int) -> None:
    pass


def test_decodes_are_profiled_at_their_context(profiler: Profiler) -> None:
    profile = profiler.decode(DecodeShape(batch_size=3, context=40), 6, nothing)
    assert len(profile.steps) == 6
    for step in profile.steps:
        assert len(step.work.sequences) == step.work.num_rows == 3
        assert 40 <= step.work.sequences[0][0] <= 40 + 20
    rows = {row.name: row for row in profile.kinds()}
    assert {name: row.count for name, row in rows.items()} == {
        "embed": 1,
        "norm": 7,
        "qkv": 3,
        "rope, KV write": 3,
        "attention": 3,
        "attention, combine": 3,
        "attention output": 3,
        "gate and up": 3,
        "down": 3,
        "logits": 1,
        "sample": 1,
    }
    layers = [row.name for row in profile.layers()]
    assert layers == ["before layers", "layer 0", "layer 1", "layer 2", "after layers"]
    assert [row.count for row in profile.layers()] == [1, 9, 9, 9, 3]
    assert all(row.total_us > 0 for row in rows.values())
    assert sum(row.share for row in rows.values()) <= 1 + 1e-9


def test_bytes_are_weights_and_keys_within_the_window(profiler: Profiler) -> None:
    profile = profiler.decode(DecodeShape(batch_size=2, context=60), 3, nothing)
    attention = next(row for row in profile.kinds() if row.name == "attention")
    kv_token = 2 * KV_HEADS * (HEAD_DIM + 2)  # keys and values in int8, and their scales
    context = np.mean([step.work.sequences[0][0] + 1 for step in profile.steps])
    expected = 2 * kv_token * (2 * context + WINDOW)
    assert attention.num_bytes == pytest.approx(expected)
    assert attention.num_ops == pytest.approx(4 * HEADS * HEAD_DIM * 2 * (2 * context + WINDOW))


def test_a_prompt_is_profiled_whole(profiler: Profiler) -> None:
    profile = profiler.prefill(PrefillShape(48), 3, nothing)
    assert len(profile.steps) == 3
    qkv = next(row for row in profile.kinds() if row.name == "qkv")
    assert qkv.num_ops == 3 * 2 * 48 * (HEADS + 2 * KV_HEADS) * HEAD_DIM * HIDDEN
    with pytest.raises(InvariantError, match="one step"):
        profiler.prefill(PrefillShape(65), 3, nothing)


def test_layers_and_head_have_costs(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(profile, "_MOST_EXCESS", 1e9)  # tests may share the machine
    costs = profiler.layer_costs(nothing)
    assert costs is not None
    assert len(costs.layers) == 3 and min(costs.layers) > 0
    assert costs.head > 0 and costs.embedding > 0
    assert max(*costs.layers, costs.head, costs.embedding) < 1, "seconds"
    monkeypatch.setattr(profile, "_MOST_EXCESS", -1.0)
    assert profiler.layer_costs(nothing) is None
    assert "not kept" in caplog.text


def test_a_layers_time_is_its_least_over_steps(profiler: Profiler) -> None:
    found = profiler.decode(DecodeShape(2, 20), 5, nothing)
    seconds = found.layer_seconds()
    least = [seconds.before, *seconds.layers, seconds.after]
    means = [row.total_us * 1e-6 for row in found.layers()]
    assert all(0 < a <= b for a, b in zip(least, means, strict=True))
    assert seconds.excess >= 0
    found.spans_us[:] = found.spans_us[2]
    same = found.layer_seconds()
    assert same.excess == pytest.approx(0)
    assert sum([same.before, *same.layers, same.after]) == pytest.approx(
        found.spans_us[2].sum() * 1e-6
    )


def test_progress_is_told(profiler: Profiler) -> None:
    seen: list[tuple[str, int, int]] = []
    profiler.decode(DecodeShape(1, 8), 4, lambda *told: seen.append(told))
    assert seen == [("decode steps", n, 4) for n in (1, 2, 3, 4)]


def test_contexts_beyond_the_model_are_refused(profiler: Profiler) -> None:
    with pytest.raises(ConfigError, match=r"--context needs \d+ positions"):
        profiler.decode(DecodeShape(1, 250), 10, nothing)
    with pytest.raises(ConfigError, match="--prefill-tokens needs 257"):
        profiler.prefill(PrefillShape(256), 10, nothing)


def test_engines_without_a_captured_program_are_refused() -> None:
    ops = NativeOps(1)
    model = loaded_model(ops)

    class NoProgram:
        def run(self, step: object, output: object) -> None:
            raise AssertionError

    def make_executor(sizes: EngineSizes) -> Executor:
        return InlineExecutor(NoProgram())

    with pytest.raises(ConfigError, match="only captured native programs"):
        Profiler(CONFIG, dataclasses.replace(model, make_executor=make_executor), MonotonicClock())
    ops.close()
