import math
from dataclasses import dataclass, replace

import pytest

from takt.observe.step_record import StepRecord
from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival, LengthDistribution
from takt.plan.simulate.measured_steps import MeasuredSteps
from takt.plan.simulate.replicate import (
    Experiment,
    Interval,
    PoissonLoad,
    TraceLoad,
    run_replication,
    run_replications,
)
from takt.plan.simulate.simulator import SimulatedServer
from takt.plan.simulate.step_samples import step_samples
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

PIECE = StepCoefficients(4e6, 1e5, 3e4, 0.0, 0.0)
SERVER = SimulatedServer(StepTimeModel((PIECE, PIECE)), 64, 256, 100_000)
LOAD = PoissonLoad(20.0, 150, LengthDistribution(100), LengthDistribution(20))
EXPERIMENT = Experiment(SERVER, LOAD, noise=0.05, seed=9)


def test_processes_change_nothing_and_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    alone = run_replications(EXPERIMENT, 3, num_processes=1)
    spread = run_replications(
        EXPERIMENT, 3, num_processes=2, on_progress=lambda d, n: told.append((d, n))
    )
    assert alone == spread
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_replications_differ_and_can_be_repeated() -> None:
    first, second = (run_replication(EXPERIMENT, i) for i in (0, 1))
    assert first != second
    assert run_replication(EXPERIMENT, 0) == first


def test_a_trace_is_the_same_in_every_replication() -> None:
    trace = TraceLoad(tuple(Arrival(i * 50_000_000, 100, 10) for i in range(40)))
    quiet = Experiment(SERVER, trace)
    assert run_replication(quiet, 0) == run_replication(quiet, 1)
    noisy = Experiment(SERVER, trace, noise=0.05)
    assert run_replication(noisy, 0) != run_replication(noisy, 1)


def test_intervals_are_students() -> None:
    # mean 2, deviation 1, t(2) = 4.303
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.high - 2.0 == pytest.approx(4.303 / math.sqrt(3))
    assert math.isnan(Interval.of([1.0]).low)
    many = Interval.of([0.0, 1.0] * 50)
    assert many.high - many.mean == pytest.approx(1.96 * 0.5025 / 10, rel=1e-3)


def test_no_replication_is_refused() -> None:
    with pytest.raises(PlanInputError, match="replications"):
        run_replications(EXPERIMENT, 0)
    with pytest.raises(PlanInputError, match="processes"):
        run_replications(EXPERIMENT, 1, num_processes=0)


def test_what_a_process_refuses_is_told_as_it_stands() -> None:
    small = Experiment(replace(SERVER, num_kv_tokens=32), LOAD)
    with pytest.raises(PlanInputError, match="does not fit into a KV pool"):
        run_replications(small, 2, num_processes=2)


def test_residuals_of_measured_steps_are_drawn_anew_in_each_replication() -> None:
    model = StepTimeModel((PIECE, PIECE))
    step = StepFeatures(4, 20, 400, 400)
    ratios = (1.0,) * 97 + (3.0,) * 3
    late = MeasuredSteps.of(model, [(step, model.predict_ns(step) * ratio) for ratio in ratios])
    experiment = Experiment(replace(SERVER, duration=late), LOAD, noise=None, seed=2)
    first, second = (run_replication(experiment, i) for i in (0, 1))
    exact = run_replication(Experiment(SERVER, LOAD, seed=2), 0)
    assert first != second
    assert first["itl_p99_ms"] > 1.5 * exact["itl_p99_ms"]
    assert first["itl_p50_ms"] < 1.2 * exact["itl_p50_ms"]
    with pytest.raises(PlanInputError, match="only measured steps"):
        run_replication(Experiment(SERVER, LOAD, noise=None), 0)


def test_a_step_record_becomes_samples_of_whole_steps() -> None:
    record = StepRecord(4)
    for i in range(6):
        record.add(TimedStep(i, 100 * i, 100 * i + 10, 100 * i + 80, 100 * i + 90 * (i != 5)))
    samples = step_samples(record)
    # The ring holds four; the last took no time.
    assert samples == [(StepFeatures(i, 2 * i, 3 * i, 4 * i), 90.0) for i in (2, 3, 4)]


@dataclass
class TimedStep:
    step_id: int
    schedule_start_ns: int
    run_start_ns: int
    run_end_ns: int
    update_end_ns: int

    @property
    def num_decode_seqs(self) -> int:
        return self.step_id

    @property
    def num_prefill_tokens(self) -> int:
        return 2 * self.step_id

    @property
    def num_kv_tokens_read(self) -> int:
        return 3 * self.step_id

    @property
    def num_qk_pairs(self) -> int:
        return 4 * self.step_id
