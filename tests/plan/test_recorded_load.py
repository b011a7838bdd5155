"""A load that was served, learned from its own steps and simulated again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival, LengthDistribution, poisson_arrivals
from takt.plan.simulate.durations import NoisyDuration
from takt.plan.simulate.lane import Lane
from takt.plan.simulate.measured_steps import MeasuredSteps, sort_of
from takt.plan.simulate.recorded_load import RecordedLoad, RecordedStep, learn
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.plan.simulate.speed_trace import SpeedTrace
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

TRUTH = StepTimeModel(
    (
        StepCoefficients(4e6, 5e4, 2e4, 200.0, 0.0),
        StepCoefficients(1e6, 2e5, 2e5, 200.0, 100.0),
    )
)
SLOW_IN_THE_MIDDLE = SpeedTrace(10e9, (1.0, 1.0, 1.5, 1.5, 1.0, 0.9))
SERVER = SimulatedServer(TRUTH, 32, 256, 100_000, speed=SLOW_IN_THE_MIDDLE)


class Tiles:
    """Rows come in sixteens: what no linear model knows."""

    def predict_ns(self, features: StepFeatures) -> float:
        rows = features.num_decode_seqs + features.num_prefill_tokens
        return TRUTH.predict_ns(features) + 5e4 * (-rows % 16)


def load() -> list[Arrival]:
    return poisson_arrivals(9.0, 500, LengthDistribution(150, 0.5), LengthDistribution(30, 0.5), 4)


@pytest.fixture(scope="module")
def served() -> tuple[SimulationResult, list[RecordedStep]]:
    """What a server's clients saw, and the steps that it made."""
    recorded: list[RecordedStep] = []
    run = Lane._run

    def run_and_record(self: Lane, output, features, now_ns):  # type: ignore[no-untyped-def]
        end_ns = run(self, output, features, now_ns)
        recorded.append(RecordedStep(end_ns, features, end_ns - now_ns))
        return end_ns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "_run", run_and_record)
        duration = NoisyDuration(Tiles(), noise=0.1, seed=1)
        return simulate(replace(SERVER, duration=duration), load()), recorded


@pytest.fixture(scope="module")
def found(served: tuple[SimulationResult, list[RecordedStep]]) -> RecordedLoad:
    return learn(served[1])


def test_the_load_is_served_again_as_it_was(
    served: tuple[SimulationResult, list[RecordedStep]], found: RecordedLoad
) -> None:
    real, recorded = served
    again = simulate(replace(SERVER, duration=found.steps.drawn(7), speed=found.speed), load())
    for share in (0.5, 0.99):
        assert again.ttft_quantile_s(share) == pytest.approx(real.ttft_quantile_s(share), rel=0.1)
        assert again.itl_quantile_s(share) == pytest.approx(real.itl_quantile_s(share), rel=0.08)
    before = [step for step in recorded if step.end_ns < 20e9]
    samples = [(step.features, step.duration_ns) for step in before]
    measured = MeasuredSteps.of(found.steps.halves[0].model, samples)
    unaware = simulate(replace(SERVER, duration=measured.drawn(7), speed=None), load())
    assert unaware.ttft_quantile_s(0.99) < 0.8 * real.ttft_quantile_s(0.99)


def test_the_machines_speed_is_told_from_what_its_steps_do(found: RecordedLoad) -> None:
    fast, slow = found.speed.factor_at(5e9), found.speed.factor_at(30e9)
    assert slow / fast == pytest.approx(1.5, rel=0.05)
    # Drawn one by one, but for what the tiles make of batches that stay for some steps.
    assert abs(found.autocorrelation) < 0.3


def test_steps_are_judged_by_a_model_that_has_not_seen_them() -> None:
    """Every other stretch of 50 steps follows a rule of its own, which a fit to it would find."""

    def duration_ns(i: int) -> float:
        seqs = 2 + i % 3
        return 2e6 + 2e6 * seqs if i // 50 % 2 else 14e6 - 2e6 * seqs

    steps = [
        RecordedStep(i * 8e6, StepFeatures(2 + i % 3, 0, 100, 100), duration_ns(i))
        for i in range(2000)
    ]
    for half in learn(steps).steps.halves:
        ratios = half.ratios[sort_of(steps[0].features)]
        assert max(ratios) > 1.2 * min(ratios)


def test_steps_of_busy_times_are_judged_too() -> None:
    """They are long, so that few fit into a second."""
    idle, busy = StepFeatures(2, 0, 600, 600), StepFeatures(32, 0, 9_000, 9_000)
    steps, now_ns = [], 0.0
    for i in range(3000):
        features, took_ns = (busy, 80e6) if i // 30 % 7 == 6 else (idle, 5e6)
        now_ns += took_ns
        steps.append(RecordedStep(now_ns, features, took_ns))
    num_busy = sum(step.features == busy for step in steps)
    halves = learn(steps).steps.halves
    num_judged = sum(len(half.ratios[sort_of(busy)]) for half in halves)
    assert num_judged == pytest.approx(num_busy, rel=0.1)


def test_too_short_a_load_cannot_be_halved() -> None:
    steps = [RecordedStep(i * 1e7, StepFeatures(1, 0, 100, 100), 1e7) for i in range(30)]
    with pytest.raises(PlanInputError, match="30 steps are too few"):
        learn(steps)
    with pytest.raises(PlanInputError, match="no step"):
        learn([])


def test_a_number_of_decodes_has_its_own_residuals_where_there_are_enough() -> None:
    most, fewer, rare = (StepFeatures(n, 0, 9_000, 9_000) for n in (32, 30, 40))
    samples = [(most, TRUTH.predict_ns(most) * 0.8) for _ in range(40)]
    samples += [(fewer, TRUTH.predict_ns(fewer)) for _ in range(40)]
    samples += [(rare, TRUTH.predict_ns(rare) * 0.8) for _ in range(40)]
    measured = MeasuredSteps.of(TRUTH, samples)
    assert measured.predict_ns(most) == pytest.approx(0.8 * TRUTH.predict_ns(most))
    assert measured.predict_ns(fewer) == pytest.approx(TRUTH.predict_ns(fewer))
    few = MeasuredSteps.of(TRUTH, [*samples[:5], *samples[40:80]])
    assert few.predict_ns(most) == pytest.approx(44 / 45 * TRUTH.predict_ns(most))


def test_a_kind_of_step_has_its_own_residuals_and_mean() -> None:
    small, large = StepFeatures(1, 0, 100, 100), StepFeatures(1, 200, 300, 20_000)
    samples = [(small, TRUTH.predict_ns(small) * ratio) for ratio in (1.0, 3.0) * 50]
    samples += [(large, TRUTH.predict_ns(large) * 1.1) for _ in range(100)]
    measured = MeasuredSteps.of(TRUTH, samples)
    assert measured.predict_ns(small) == pytest.approx(2.0 * TRUTH.predict_ns(small))
    drawn = measured.drawn(1)
    ratios = {round(drawn.predict_ns(large) / TRUTH.predict_ns(large), 6) for _ in range(50)}
    assert ratios == {1.1}
    with pytest.raises(PlanInputError, match="no measured steps"):
        MeasuredSteps.of(TRUTH, [])


def test_before_and_after_a_trace_of_speeds_its_ends_hold() -> None:
    assert [SLOW_IN_THE_MIDDLE.factor_at(t) for t in (-1e9, 25e9, 1e12)] == [1.0, 1.5, 0.9]
