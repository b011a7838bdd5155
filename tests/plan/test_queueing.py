"""Closed forms against their textbook values and against long simulations."""

import heapq
import math

import numpy as np
import pytest

from takt.plan.errors import PlanInputError
from takt.plan.queueing.batch_server import BatchServer, poisson_quantile
from takt.plan.queueing.gamma import gamma_quantile, gamma_survival
from takt.plan.queueing.mg1 import MG1
from takt.plan.queueing.mgc import MGc
from takt.plan.queueing.service import (
    DeterministicService,
    TruncatedLogNormal,
    squared_variation,
)

LOW = TruncatedLogNormal.from_mean(1.0, 0.28, high_over_mean=10.0)
HIGH = TruncatedLogNormal.from_mean(1.0, 1.39, high_over_mean=30.0)


def draw(service: TruncatedLogNormal, rng: np.random.Generator, count: int) -> np.ndarray:
    kept: list[np.ndarray] = []
    missing = count
    while missing > 0:
        drawn = rng.lognormal(service.mu, service.sigma, missing + missing // 50 + 10)
        drawn = drawn[(drawn >= service.low_s) & (drawn <= service.high_s)][:missing]
        kept.append(drawn)
        missing -= len(drawn)
    return np.concatenate(kept)


def lindley_waits(interarrival: np.ndarray, service: np.ndarray) -> np.ndarray:
    """W(n+1) = max(0, W(n) + S(n) - A(n+1)), as a running sum less its minimum so far."""
    steps = np.concatenate([[0.0], service[:-1] - interarrival[1:]])
    walk = np.cumsum(steps)
    return walk - np.minimum.accumulate(walk)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("service", [LOW, HIGH], ids=["0.28", "1.39"])
def test_p99_wait_of_one_server_is_within_3_percent(
    load: float, service: TruncatedLogNormal
) -> None:
    rng = np.random.default_rng(11)
    count = 6_000_000 if load > 0.8 else 3_000_000
    rate = load / service.moment(1)
    waits = lindley_waits(rng.exponential(1 / rate, count), draw(service, rng, count))
    queue = MG1(rate, service)
    measured = float(np.quantile(waits[count // 20 :], 0.99))
    assert queue.wait_quantile_s(0.99) == pytest.approx(measured, rel=0.03)
    assert queue.mean_wait_s == pytest.approx(float(waits[count // 20 :].mean()), rel=0.03)
    assert queue.validity().is_valid


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("load", [0.7, 0.85])
@pytest.mark.parametrize("service", [LOW, HIGH], ids=["0.28", "1.39"])
def test_p99_wait_of_few_servers_is_within_10_percent(
    servers: int, load: float, service: TruncatedLogNormal
) -> None:
    rng = np.random.default_rng(12)
    count = 400_000
    rate = servers * load / service.moment(1)
    arrivals = np.cumsum(rng.exponential(1 / rate, count)).tolist()
    free = [0.0] * servers
    waits = []
    for arrival, time in zip(arrivals, draw(service, rng, count).tolist(), strict=True):
        start = max(arrival, free[0])
        waits.append(start - arrival)
        heapq.heapreplace(free, start + time)
    queue = MGc(rate, service, servers)
    measured = float(np.quantile(waits[count // 20 :], 0.99))
    assert queue.wait_quantile_s(0.99) == pytest.approx(measured, rel=0.10)
    assert queue.validity().is_valid


@pytest.mark.parametrize("service", [LOW, HIGH, TruncatedLogNormal(0.3, 0.9, 0.5, 4.0)])
def test_moments_are_exact(service: TruncatedLogNormal) -> None:
    low, high = max(service.low_s, 1e-9), service.high_s
    x = np.exp(np.linspace(math.log(low), math.log(high), 400_001))
    density = np.exp(-((np.log(x) - service.mu) ** 2) / (2 * service.sigma**2)) / x
    mass = float(np.trapezoid(density, x))
    for order in (1, 2, 3):
        numeric = float(np.trapezoid(density * x**order, x)) / mass
        assert service.moment(order) == pytest.approx(numeric, rel=1e-5)
    assert service.quantile(0.0) == service.low_s
    assert service.quantile(1.0) == pytest.approx(service.high_s)


def test_known_squared_variations_are_kept_by_a_wide_cut() -> None:
    assert squared_variation(LOW) == pytest.approx(0.28, rel=0.01)
    assert squared_variation(HIGH) == pytest.approx(1.39, rel=0.05)


def test_deterministic_service_gives_the_m_d_1_mean() -> None:
    # R D^2 / (2 (1 - R D))
    assert MG1(2.0, DeterministicService(0.4)).mean_wait_s == pytest.approx(2 * 0.16 / (2 * 0.2))


class Exponential:
    def moment(self, order: int) -> float:
        return float(math.factorial(order))


def test_exponential_service_gives_the_m_m_1_quantile_exactly() -> None:
    # P(W > t) = rho exp(-(mu - lambda) t), a gamma tail of shape 1.
    assert MG1(0.8, Exponential()).wait_quantile_s(0.99) == pytest.approx(math.log(80) / 0.2)


def test_erlang_c_has_its_tabulated_value() -> None:
    queue = MGc(1.6, Exponential(), 2)
    assert queue.wait_probability == pytest.approx(0.7111, abs=1e-4)
    assert queue.mean_wait_s == pytest.approx(0.7111 / 0.4, rel=1e-3)


def test_unstable_queues_wait_for_ever_and_say_so() -> None:
    for queue in (MG1(1.1, Exponential()), MGc(2.1, Exponential(), 2)):
        assert queue.wait_quantile_s(0.99) == math.inf
        assert queue.mean_wait_s == math.inf
        assert not queue.validity().is_valid


def test_an_idle_server_makes_nobody_wait() -> None:
    assert MG1(0.005, DeterministicService(1.0)).wait_quantile_s(0.99) == 0
    assert not MG1(0.95, DeterministicService(1.0)).validity().is_valid
    assert not MGc(7.5, Exponential(), 8).validity().is_valid


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.5, 40.0])
def test_gamma_tail_matches_numeric_integration(shape: float) -> None:
    for x in (0.2 * shape, shape, 3 * shape + 2):
        power = min(shape, 1.0)  # in u = t^power the density has no pole at 0
        u = np.linspace(0, x**power, 2_000_001)[1:]
        t = u ** (1 / power)
        density = np.exp((shape / power - 1) * np.log(u) - t - math.lgamma(shape)) / power
        numeric = float(np.trapezoid(density, u))
        assert 1 - gamma_survival(shape, x) == pytest.approx(numeric, abs=2e-5)
    assert gamma_survival(shape, gamma_quantile(shape, 1.0, 0.01)) == pytest.approx(0.01)
    assert gamma_quantile(1.0, 2.0, math.exp(-3)) == pytest.approx(6.0)


def test_batch_server_without_prompts_obeys_littles_law() -> None:
    # t = a + b (1 + B), B = lambda (O - 1) t has a closed solution.
    server = BatchServer(2.0, 101, 1e-9, lambda b: 1e-3 + 1e-5 * b, lambda b: 2e-3, 1e9)
    load = server.solve()
    assert load is not None
    expected = 200 * 1.01e-3 / (1 - 200 * 1e-5)
    assert load.mean_batch == pytest.approx(expected, rel=1e-4)
    assert server.validity(load).is_valid


def test_batch_server_has_no_fixed_point_beyond_its_limits() -> None:
    def slow(batch: float) -> float:
        return 1e-3 * batch

    assert BatchServer(20.0, 101, 1.0, slow, slow, 1e9).solve() is None
    assert BatchServer(1.0, 101, 1.0, lambda b: 0.1, lambda b: 0.1, 5).solve() is None
    assert BatchServer(2.0, 2, 1.0, lambda b: 0.1, lambda b: 1.0, 1e9).solve() is None


def test_mixed_steps_decide_the_p99_gap_once_they_are_over_1_percent() -> None:
    def server(rate: float) -> BatchServer:
        return BatchServer(rate, 2, 1.0, lambda b: 0.01, lambda b: 0.02, 1e9)

    rare, common = server(0.5), server(2.0)
    low, high = rare.solve(), common.solve()
    assert low is not None and high is not None
    assert rare.itl_quantile_s(low, 0.99) == 0.01
    assert common.itl_quantile_s(high, 0.99) == 0.02


@pytest.mark.parametrize("mean", [0.5, 5.0, 80.0])
def test_poisson_quantiles(mean: float) -> None:
    drawn = np.random.default_rng(3).poisson(mean, 1_000_000)
    assert abs(poisson_quantile(mean, 0.99) - float(np.quantile(drawn, 0.99))) <= 1


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_figures_are_refused(value: float) -> None:
    for make in (
        lambda: MG1(value, Exponential()),
        lambda: DeterministicService(value),
        lambda: TruncatedLogNormal.from_mean(value, 1.0),
        lambda: TruncatedLogNormal(0.0, value, 0.0, 1.0),
    ):
        with pytest.raises(PlanInputError, match="above 0"):
            make()
