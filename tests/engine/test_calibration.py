"""Calibration at start-up: its time, its file, its dummy steps, and the floor it finds."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_driver import POOL_BYTES, engine_config

from takt.clock import ManualClock
from takt.engine.build import LoadedModel, build_core
from takt.engine.calibrate import BUDGET_NS, Calibration, calibrate
from takt.engine.calibration_file import calibration_path, read_calibration, write_calibration
from takt.engine.dummy_steps import DummySteps
from takt.engine.executor import InlineExecutor
from takt.engine.layer_cost_file import layer_cost_path
from takt.engine.messages import AddRequest
from takt.engine.sizing import EngineSizes, KVShape, plan_sizes
from takt.errors import ConfigError
from takt.scheduler.calibration_steps import DummyStep, calibration_steps
from takt.scheduler.create import step_limits
from takt.scheduler.step_time import StepFeatures
from takt.types.kv import KVGroupSpec
from takt.types.sampling_params import SamplingParams
from takt.types.step import StepInput, StepOutput

MS = 1_000_000


def truth_ns(features: StepFeatures) -> float:
    seqs, tokens, kv_tokens, pairs = features
    memory = 3.0 * MS + 700.0 * kv_tokens
    return max(memory, 0.6 * MS + 0.4 * MS * (seqs + tokens) + 500.0 * kv_tokens + 250.0 * pairs)


class TimedProgram:
    """Checks what a real program asks of its input, and takes a known time on a manual clock."""

    def __init__(self, clock: ManualClock, slowness: float = 1.0) -> None:
        self._clock = clock
        self._slowness = slowness
        self.num_steps = 0
        self.is_disturbed = False
        """Whether every other step takes six times as long."""

    def run(self, step: StepInput, output: StepOutput) -> None:
        self.num_steps += 1
        starts = step["query_start"][: step.num_seqs + 1]
        lengths = step["seq_lens"][: step.num_seqs]
        assert starts[-1] == step.num_tokens
        pairs = num_decodes = 0
        for seq in range(step.num_seqs):
            positions = step["positions"][starts[seq] : starts[seq + 1]]
            assert positions[-1] == lengths[seq] - 1
            assert (np.diff(positions) == 1).all()
            pairs += int((positions + 1).sum())
            num_decodes += len(positions) == 1 and step.num_rows > seq
        assert step["slot_mapping"][:, : step.num_tokens].min() >= 0
        features = StepFeatures(
            num_decodes, step.num_tokens - num_decodes, int(lengths.sum()), pairs
        )
        slowness = self._slowness * (6 if self.is_disturbed and self.num_steps % 2 else 1)
        self._clock.advance(round(slowness * truth_ns(features)))
        output["token_ids"][: step.num_rows] = 1
        output["header"][0] = step["header"][0]


def timed_model(clock: ManualClock, slowness: float = 1.0) -> tuple[LoadedModel, TimedProgram]:
    program = TimedProgram(clock, slowness)

    def make_executor(sizes: EngineSizes) -> InlineExecutor:
        return InlineExecutor(program)

    shape = KVShape([KVGroupSpec((0,), None), KVGroupSpec((1,), 64)], 1, 2, 2048)
    model = LoadedModel(
        kv_shape=shape,
        vocab_size=100,
        eos_token_ids=frozenset(),
        precision="fake",
        weight_bytes=0,
        num_threads=1,
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=lambda: None,
    )
    return model, program


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path))
    return tmp_path


def measure(slowness: float = 1.0) -> tuple[Calibration, ManualClock, TimedProgram]:
    clock = ManualClock()
    model, program = timed_model(clock, slowness)
    config = engine_config(max_num_seqs=64, max_num_batched_tokens=512)
    sizes = plan_sizes(config, model.kv_shape, POOL_BYTES, vocab_size=100)
    steps = DummySteps(model.make_executor(sizes), sizes, clock)
    shapes = calibration_steps(step_limits(config.scheduler, sizes.max_model_len))
    return calibrate(shapes, steps.run_ns, clock), clock, program


def test_a_quiet_machine_is_known_after_calibration() -> None:
    calibration, clock, program = measure()
    assert program.num_steps == calibration.num_steps
    assert clock.now_ns() < 3_000 * MS
    assert calibration.floor_ns == pytest.approx(truth_ns(DummyStep(1, 32).features), rel=0.01)
    for seqs, tokens, start in ((1, 0, 0), (6, 20, 100), (30, 0, 0), (3, 200, 700), (0, 300, 0)):
        features = DummyStep(seqs, 300, tokens, start).features
        assert calibration.model.predict_ns(features) == pytest.approx(truth_ns(features), rel=0.1)


@pytest.mark.parametrize("slowness", [5.0, 30.0])
def test_a_slow_machine_calibrates_in_the_same_time_on_small_steps(slowness: float) -> None:
    calibration, clock, _ = measure(slowness)
    assert clock.now_ns() < BUDGET_NS + 600 * MS
    small, large = DummyStep(4, 100).features, DummyStep(0, 0, 512).features
    predict = calibration.model.predict_ns
    assert predict(small) == pytest.approx(slowness * truth_ns(small), rel=0.3)
    # What it had no time for is not taken to be free.
    assert 0.8 * slowness * truth_ns(large) < predict(large) < 2.5 * slowness * truth_ns(large)


def build(clock: ManualClock, **options: Any) -> tuple[Any, TimedProgram]:
    model, program = timed_model(clock)
    return build_core(engine_config(**options), model, clock), program


def test_a_second_start_reads_what_the_first_measured() -> None:
    _, first = build(ManualClock(), slo_itl_p99_ms=20.0)
    _, second = build(ManualClock(), slo_itl_p99_ms=25.0)
    _, other = build(ManualClock(), slo_itl_p99_ms=20.0, dtype="float32")
    _, asked = build(ManualClock(), slo_itl_p99_ms=20.0, calibrate=True)
    assert first.num_steps > 20
    assert second.num_steps == 0
    assert other.num_steps > 20
    assert asked.num_steps > 20


def test_a_busy_machine_is_measured_again_at_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    model, program = timed_model(clock)
    program.is_disturbed = True
    build_core(engine_config(slo_itl_p99_ms=100.0), model, clock)
    assert "the machine was busy" in caplog.text
    caplog.clear()
    assert build(ManualClock(), slo_itl_p99_ms=100.0)[1].num_steps > 20
    assert build(ManualClock(), slo_itl_p99_ms=100.0)[1].num_steps == 0
    assert not caplog.records


def test_without_targets_nothing_is_calibrated_unless_asked() -> None:
    assert build(ManualClock())[1].num_steps == 0
    assert build(ManualClock(), calibrate=True)[1].num_steps > 20


def test_what_was_measured_holds_for_its_type_of_kv() -> None:
    default, int8, bf16 = (
        engine_config(kv_cache_dtype=name) for name in ("auto", "int8", "bfloat16")
    )
    for path in (lambda config: calibration_path(config, 1), layer_cost_path):
        assert path(default) == path(int8)
        assert path(default) != path(bf16)


def test_what_was_measured_holds_for_its_type_of_generated_tokens() -> None:
    default = engine_config()
    model = dataclasses.replace(default.model, decode_activation_dtype="bfloat16")
    bf16 = dataclasses.replace(default, model=model)
    for path in (lambda config: calibration_path(config, 1), layer_cost_path):
        assert path(default) != path(bf16)


def test_a_broken_file_is_measured_anew() -> None:
    build(ManualClock(), slo_itl_p99_ms=20.0)
    path = calibration_path(engine_config(slo_itl_p99_ms=20.0), 1)
    kept = read_calibration(path)
    assert kept is not None
    plain = json.loads(path.read_text())
    changes: list[dict[str, Any]] = [
        {"floor_ns": -1},
        {"floor_ns": 10**100},
        {"pieces": 3},
        {"pieces": [[0] * 5] * 2},
        {"pieces": [[1e300] * 5] * 2},
        {"pieces": [[10**400] * 5] * 2},
        {"residual_ratios": []},
        {"residual_ratios": [0.0]},
        {"num_steps": "26"},
    ]
    texts = ["", "{}", "[]", "[" * 100_000, '{"a":' * 100_000, "\udcff"]
    texts += [json.dumps(plain | change) for change in changes]
    texts += [json.dumps(plain | {"floor_ns": 9}).replace("9", "1e999")]
    for text in texts:
        path.write_bytes(text.encode(errors="surrogateescape"))
        assert read_calibration(path) is None, text[:80]
    assert build(ManualClock(), slo_itl_p99_ms=20.0)[1].num_steps > 20
    assert read_calibration(path) == kept
    write_calibration(path / "no" / "folder", kept)  # only costs the next start its time


@pytest.mark.parametrize("flag", ["slo_itl_p99_ms", "slo_ttft_p99_ms"])
def test_a_target_below_the_floor_is_refused_with_the_floor(flag: str) -> None:
    name = flag.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"--{name} 1.5 .* takes 3\.\d+ ms .*--slo-force"):
        build(ManualClock(), **{flag: 1.5})
    core, _ = build(ManualClock(), **{flag: 1.5}, slo_force=True)
    assert not core.has_work


def test_a_target_is_not_refused_for_what_an_earlier_start_measured() -> None:
    build(ManualClock(), slo_itl_p99_ms=20.0)
    path = calibration_path(engine_config(slo_itl_p99_ms=20.0), 1)
    kept = read_calibration(path)
    assert kept is not None
    write_calibration(path, dataclasses.replace(kept, floor_ns=71 * MS))
    assert build(ManualClock(), slo_itl_p99_ms=20.0)[1].num_steps > 20
    assert read_calibration(path) == kept


@pytest.mark.parametrize(("num_disturbed", "is_floor"), [(0, False), (2, False), (3, True)])
def test_disturbed_samples_are_a_floor_only_if_a_p99_explains_them(
    num_disturbed: int, is_floor: bool
) -> None:
    clock = ManualClock()
    model, _ = timed_model(clock)
    config = engine_config(max_num_seqs=64, max_num_batched_tokens=512)
    sizes = plan_sizes(config, model.kv_shape, POOL_BYTES, vocab_size=100)
    shapes = calibration_steps(step_limits(config.scheduler, sizes.max_model_len))
    quiet_ns = round(truth_ns(shapes[0].features))
    slow_turns = range(10, 10 + num_disturbed)
    turns = itertools.count()

    def run(shape: DummyStep) -> int:
        taken = 70 * MS if next(turns) in slow_turns else round(truth_ns(shape.features))
        clock.advance(taken)
        return taken

    assert calibrate(shapes, run, clock).floor_ns == (70 * MS if is_floor else quiet_ns)


@pytest.mark.parametrize("value", [0.0, -3.0, float("nan"), float("inf")])
@pytest.mark.parametrize("flag", ["slo_itl_p99_ms", "slo_ttft_p99_ms"])
def test_targets_that_are_no_times_are_refused(flag: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} must be a number"):
        engine_config(**{flag: value})


def test_a_contract_on_gaps_needs_reserved_output_and_chunks() -> None:
    with pytest.raises(ConfigError, match="--kv-reservation full"):
        engine_config(slo_itl_p99_ms=9.0, kv_reservation="optimistic")
    with pytest.raises(ConfigError, match="chunked prefill"):
        engine_config(scheduling_policy="pace", enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="--admission refuse needs predictions"):
        engine_config(admission="refuse")


def test_each_step_reports_what_was_predicted_of_it() -> None:
    clock = ManualClock()
    core, _ = build(clock, slo_itl_p99_ms=20.0)
    core.add(AddRequest("a", [1] * 200, SamplingParams(max_tokens=40, temperature=0.0)))
    ratios = []
    while core.has_work:
        stats = core.step().stats
        assert stats is not None
        assert stats.predicted_p99_ns >= stats.predicted_ns > 0
        ratios.append((stats.update_end_ns - stats.schedule_start_ns) / stats.predicted_ns)
    assert np.mean(np.abs(np.array(ratios[-30:]) - 1)) < 0.05


def test_without_a_model_of_time_nothing_is_predicted() -> None:
    core, _ = build(ManualClock())
    core.add(AddRequest("a", [1] * 5, SamplingParams(max_tokens=1)))
    stats = core.step().stats
    assert stats is not None
    assert (stats.predicted_ns, stats.predicted_p99_ns) == (0, 0)
