import math
import random
from collections.abc import Callable

import pytest

from takt.scheduler.calibration_steps import calibration_steps
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.residuals import ResidualQuantile
from takt.scheduler.step_kind import kind_of
from takt.scheduler.step_time import StepFeatures, StepTimeModel

Truth = Callable[[StepFeatures], float]


def machine(f: StepFeatures) -> float:
    """A step that is no hinge: memory and arithmetic overlap in part, and tiles are whole."""
    seqs, tokens, kv_tokens, pairs = f
    memory = 3.3e6 + 4e4 * seqs + 700.0 * kv_tokens
    arithmetic = 6e5 + 4e5 * seqs + 4.3e5 * tokens + 500.0 * kv_tokens + 250.0 * pairs
    tile = 1.5e5 * (-(seqs + tokens) % 16)
    return max(memory, arithmetic) + 0.2 * min(memory, arithmetic) + tile


def calibrated(truth: Truth, bias: float = 1.0) -> StepTimeModel:
    limits = SchedulerLimits(
        max_model_len=4096,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        max_num_rows=1024,
        max_steps_in_flight=1,
        enable_chunked_prefill=True,
    )
    steps = calibration_steps(limits)
    return StepTimeModel.fit([(s.features, bias * truth(s.features)) for s in steps])


def mixed_step(rng: random.Random) -> StepFeatures:
    seqs = rng.choice([0, 1, 2, 3, 4, 5, 6, 8, 12, 16])
    kv_tokens = pairs = sum(rng.randint(400, 528) for _ in range(seqs))
    if seqs and rng.random() < 0.5:
        return StepFeatures(seqs, 0, kv_tokens, pairs)
    tokens, start = rng.choice([16, 20, 25, 32, 64, 128]), rng.choice([0, 100, 200, 1500])
    end = start + tokens
    return StepFeatures(seqs, tokens, kv_tokens + end, pairs + tokens * (start + end + 1) // 2)


class Run:
    """Feeds steps to a model and keeps what it predicted of each before it saw it."""

    def __init__(self, model: LearnedStepTime, seed: int = 0) -> None:
        self.model = model
        self._rng = random.Random(seed)
        self.errors: list[float] = []
        self.covered: list[bool] = []

    def steps(self, count: int, truth: Truth, outliers: float = 0.0) -> None:
        for _ in range(count):
            features = mixed_step(self._rng)
            duration = truth(features) * math.exp(self._rng.gauss(0.0, 0.02))
            if self._rng.random() < outliers:
                duration *= 1.0 + 3.0 * self._rng.random()
            self.errors.append(abs(duration / self.model.predict_ns(features) - 1))
            self.covered.append(duration <= self.model.p99_ns(features))
            self.model.observe(features, duration)

    def mean_error(self, last: int) -> float:
        return sum(self.errors[-last:]) / last

    def coverage(self, last: int) -> float:
        return sum(self.covered[-last:]) / last


def test_predictions_are_within_5_percent_and_p99_covers_99() -> None:
    run = Run(LearnedStepTime(calibrated(machine, bias=1.15)))
    run.steps(10_000, machine)
    assert run.mean_error(10_000) <= 0.05
    assert 0.985 <= run.coverage(10_000) <= 0.995


def test_outliers_neither_tilt_the_model_nor_break_the_coverage() -> None:
    run = Run(LearnedStepTime(calibrated(machine)))
    run.steps(6_000, machine, outliers=0.005)
    clean = Run(run.model, seed=1)
    clean.steps(500, machine)
    assert clean.mean_error(500) <= 0.05
    assert 0.985 <= run.coverage(5_000) <= 0.995


@pytest.mark.parametrize("factor", [0.6, 1.8])
def test_a_machine_that_changes_its_speed_is_followed_within_some_steps(factor: float) -> None:
    run = Run(LearnedStepTime(calibrated(machine)))
    run.steps(1_000, machine)
    run.steps(20, lambda f: factor * machine(f))
    run.steps(300, lambda f: factor * machine(f))
    assert run.mean_error(300) <= 0.06


def test_more_work_is_never_predicted_to_be_faster() -> None:
    run = Run(LearnedStepTime(calibrated(machine)))
    run.steps(2_000, machine)
    for piece in run.model.pieces:
        assert min(piece) >= 0.0


def test_what_a_snapshot_carries_predicts_nearly_as_the_model_does() -> None:
    """Pieces and a factor by kind, also for large prompts that calibration got wrong by far."""
    large = StepFeatures(0, 500, 500, 125_000)

    def truth(f: StepFeatures) -> float:
        return machine(f) * (3.0 if f.num_prefill_tokens > 400 else 1.0)

    run = Run(LearnedStepTime(calibrated(machine)))
    for _ in range(40):
        run.steps(50, truth)
        run.model.observe(large, truth(large))
    told, factors = run.model.pieces, run.model.factors
    steps = [mixed_step(random.Random(i)) for i in range(300)]

    def off(f: StepFeatures) -> float:
        longer = max(piece.predict_ns(f) for piece in told)
        return abs(longer * factors[kind_of(f)] / run.model.predict_ns(f) - 1)

    assert sum(off(f) for f in steps) / 300 <= 0.04
    assert off(large) <= 0.1
    assert run.model.predict_ns(large) == pytest.approx(truth(large), rel=0.1)


def test_a_staircase_in_the_rows_is_learned() -> None:
    """Few rows have a kernel of their own, and many come in sixteens: whatever the heights are."""

    def stairs(f: StepFeatures) -> float:
        rows = f.num_decode_seqs + f.num_prefill_tokens
        products = 4e5 * rows if rows <= 12 else 4.5e6 * -(-rows // 16)
        return 4e6 + products + 600.0 * f.num_kv_tokens_read + 200.0 * f.num_qk_pairs

    run = Run(LearnedStepTime(calibrated(stairs)))
    run.steps(4_000, stairs)
    assert run.mean_error(2_000) <= 0.03
    assert 0.98 <= run.coverage(2_000) <= 0.997


def test_the_reported_error_is_that_of_the_last_steps() -> None:
    run = Run(LearnedStepTime(calibrated(machine, bias=1.5)))
    run.steps(5_000, machine)
    error = run.model.error
    assert error.num_steps == 5_000
    assert error.mean_absolute == pytest.approx(run.mean_error(800), rel=0.2)
    assert error.covered == pytest.approx(run.coverage(800), abs=0.01)


def test_large_steps_that_calibration_got_wrong_by_far_are_known_after_two_of_them() -> None:
    model = LearnedStepTime(calibrated(machine))
    decode, prompt = StepFeatures(2, 0, 900, 900), StepFeatures(2, 300, 1200, 46_000)
    for _ in range(100):
        model.observe(decode, machine(decode))
    for _ in range(2):
        assert model.predict_ns(prompt) < 2 * machine(prompt)
        model.observe(prompt, 20 * machine(prompt))
    assert model.predict_ns(prompt) == pytest.approx(20 * machine(prompt), rel=0.3)
    model.observe(decode, machine(decode))
    assert model.predict_ns(decode) == pytest.approx(machine(decode), rel=0.1)


def test_one_outlier_after_the_start_is_not_the_p99() -> None:
    samples = [(s, 1.02 * machine(s)) for s in (mixed_step(random.Random(i)) for i in range(60))]
    model = LearnedStepTime(calibrated(machine).with_residuals(samples))
    features = StepFeatures(2, 0, 900, 900)
    before = model.p99_ns(features)
    model.observe(features, 50 * machine(features))
    assert model.p99_ns(features) < 1.3 * before


def test_a_quantile_forgets_what_is_long_past() -> None:
    quantile = ResidualQuantile(0.99, [5.0] * 600)
    assert quantile.value == 5.0
    for _ in range(600):
        quantile.add(1.0)
    assert quantile.value == 1.0


def test_a_quantile_corrects_itself_when_residuals_grow() -> None:
    quantile, missed = ResidualQuantile(0.99), 0
    for i in range(20_000):
        ratio = 1.0 + i * 1e-4 * ((i * 7919) % 101) / 101
        missed += ratio > quantile.value
        quantile.add(ratio)
    assert missed / 20_000 == pytest.approx(0.01, abs=0.003)
