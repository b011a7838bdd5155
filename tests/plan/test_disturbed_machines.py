"""The contract on machines that are disturbed, on the virtual clock; exact for a seed."""

from __future__ import annotations

import numpy as np
import pytest

from takt.errors import TaktError
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.durations import DisturbedDuration
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.slo import SLO
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

CPU = StepTimeModel(
    (StepCoefficients(3.2e6, 4e4, 0, 800, 0), StepCoefficients(5e5, 6.2e5, 4.3e5, 400, 220))
)
ITL_S, TTFT_S, LONG_TTFT_S = 0.012, 3.0, 11.4
WINDOW_S, WARM_UP_S = 30.0, 5.0


def load(rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Short prompts at random, and a long one every seven seconds."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1e9 / rate, int(3 * rate * seconds)))
    arrivals = [Arrival(int(t), 400, 128) for t in times if t < seconds * 1e9]
    slo = SLO.from_ms(None, 1e3 * LONG_TTFT_S)
    arrivals += [Arrival(int(t * 1e9), 3000, 8, slo) for t in np.arange(3.5, seconds, 7.0)]
    return sorted(arrivals, key=lambda a: a.time_ns)


def serve(arrivals: list[Arrival], duration: DisturbedDuration) -> SimulationResult:
    server = SimulatedServer(
        duration,
        max_num_seqs=256,
        max_num_batched_tokens=512,
        num_kv_tokens=60_000,
        scheduling_policy="pace",
        slo=SLO.from_ms(1e3 * ITL_S, 1e3 * TTFT_S),
        step_time=CPU,
    )
    return simulate(server, arrivals, warm_up_share=0.0)


def late_share(result: SimulationResult) -> float:
    late = result.gap_counts[result.gaps_s > ITL_S].sum()
    return float(late / result.gap_counts.sum())


@pytest.mark.parametrize("seed", [1, 2])
def test_one_step_in_a_hundred_held_up_long_costs_neither_itl_nor_ttft(seed: int) -> None:
    arrivals = load(1.05, 100.0, seed)
    result = serve(arrivals, DisturbedDuration(CPU, outliers=0.01, seed=seed))
    assert max(result.itl_by_window_s(0.99, WINDOW_S, WARM_UP_S)) <= ITL_S
    assert 0.001 <= late_share(result) <= 0.006
    is_long = np.array([arrivals[i].num_prompt_tokens == 3000 for i in result.served])
    assert float(np.quantile(result.ttft_s[~is_long], 0.99)) <= TTFT_S
    assert float(result.ttft_s[is_long].max()) <= LONG_TTFT_S


def test_a_machine_that_is_slow_for_a_while_keeps_its_windows() -> None:
    arrivals = load(0.7, 100.0, 3)
    slow = DisturbedDuration(CPU, outliers=0.003, slowness=1.5, slow_s=8.0, seed=3)
    result = serve(arrivals, slow)
    assert max(result.itl_by_window_s(0.99, WINDOW_S, WARM_UP_S)) <= ITL_S


@pytest.mark.parametrize(
    "wrong", [{"outliers": 1.5}, {"noise": -0.1}, {"slowness": 0.0}, {"slow_s": -1.0}]
)
def test_what_no_machine_does_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(TaktError):
        DisturbedDuration(CPU, **wrong)


def test_stretches_are_as_slow_as_asked() -> None:
    features = StepFeatures(1, 0, 400, 400)
    slow = DisturbedDuration(CPU, noise=0.0, outliers=0.0, slowness=1.5, slow_s=1.0, seed=1)
    ratios = {round(slow.predict_ns(features) / CPU.predict_ns(features), 6) for _ in range(3000)}
    assert ratios == {1.0, 1.5}
