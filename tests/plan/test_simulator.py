import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takt.plan.errors import PlanInputError
from takt.plan.simulate.arrivals import Arrival, LengthDistribution, poisson_arrivals
from takt.plan.simulate.durations import NoisyDuration
from takt.plan.simulate.kv_io import KVTransfers
from takt.plan.simulate.result import weighted_quantile
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.step_time import StepFeatures

MS = 1_000_000


@dataclass(frozen=True)
class Rule:
    """Nanoseconds as a function of a step's features."""

    rule: Callable[[StepFeatures], float]

    def predict_ns(self, features: StepFeatures) -> float:
        return self.rule(features)


TEN_MS = Rule(lambda f: 10 * MS)
HINGE = Rule(
    lambda f: (
        max(4e6, 2e6 + 3e4 * (f.num_decode_seqs + f.num_prefill_tokens))
        + 10.0 * f.num_kv_tokens_read
    )
)


def server(duration: Rule = TEN_MS, **changes: object) -> SimulatedServer:
    base = SimulatedServer(
        duration, max_num_seqs=64, max_num_batched_tokens=64, num_kv_tokens=10**5
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_one_request_takes_its_chunks_and_its_tokens() -> None:
    # 100 tokens in chunks of 64: two steps, the second yields the first of four tokens.
    result = simulate(server(), [Arrival(5 * MS, 100, 4)])
    assert result.ttft_s.tolist() == [pytest.approx(0.020)]
    assert result.e2e_s.tolist() == [pytest.approx(0.050)]
    assert result.gaps_s.tolist() == pytest.approx([0.010] * 3)
    assert result.tpot_s.tolist() == [pytest.approx(0.010)]
    assert result.num_steps == 5


def test_features_are_those_of_the_engines_record() -> None:
    seen: list[StepFeatures] = []
    watching = Rule(lambda f: seen.append(f) or 10 * MS)  # type: ignore[func-returns-value]
    simulate(server(watching), [Arrival(0, 70, 2), Arrival(1 * MS, 10, 1)])
    assert seen == [
        StepFeatures(0, 64, 64, 64 * 65 // 2),
        # the rest of the first prompt, and all of the second
        StepFeatures(0, 16, 70 + 10, 6 * (64 + 70 + 1) // 2 + 55),
        StepFeatures(1, 0, 71, 71),
    ]


def test_a_late_request_waits_for_the_step_that_runs() -> None:
    result = simulate(server(), [Arrival(0, 10, 3), Arrival(12 * MS, 10, 1)], warm_up_share=0.0)
    assert result.ttft_s.tolist() == pytest.approx([0.010, 0.018])


def test_an_idle_server_starts_at_the_next_arrival() -> None:
    result = simulate(server(), [Arrival(0, 10, 1), Arrival(500 * MS, 10, 1)], warm_up_share=0.0)
    assert result.ttft_s.tolist() == pytest.approx([0.010, 0.010])
    assert result.busy_share == pytest.approx(10 / 500)


def load(rate: float = 40.0, count: int = 400, seed: int = 1) -> list[Arrival]:
    return poisson_arrivals(
        rate, count, LengthDistribution(60, 0.5), LengthDistribution(20, 0.5), seed
    )


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    def run(seed: int) -> list[float]:
        duration = NoisyDuration(HINGE, noise=0.05, seed=seed)
        return simulate(replace(server(), duration=duration), load()).e2e_s.tolist()

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert load(seed=1) == load(seed=1) != load(seed=2)


def test_noise_keeps_the_mean_and_bias_moves_it() -> None:
    noisy = NoisyDuration(TEN_MS, noise=0.2, bias=1.1, seed=1)
    drawn = [noisy.predict_ns(StepFeatures(1, 0, 1, 1)) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(11 * MS, rel=0.01)
    assert np.std(drawn) / np.mean(drawn) == pytest.approx(0.2, rel=0.05)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]), st.sampled_from(["full", "optimistic"]))
@settings(max_examples=25, deadline=None)
def test_every_token_of_every_request_is_served(seed: int, stages: int, reservation: str) -> None:
    arrivals = load(count=80, seed=seed)
    small = server(HINGE, num_kv_tokens=2400, num_stages=stages, kv_reservation=reservation)
    result = simulate(small, arrivals, warm_up_share=0.0)
    assert result.num_requests == 80
    assert np.all(result.ttft_s > 0) and np.all(result.e2e_s >= result.ttft_s)
    for arrival, e2e, ttft in zip(arrivals, result.e2e_s, result.ttft_s, strict=True):
        # No gap is shorter than the shortest step.
        assert e2e - ttft >= (arrival.num_output_tokens - 1) * 4e-3 - 1e-9


def test_gaps_of_preempted_requests_include_their_absence() -> None:
    arrivals = [Arrival(i * 1000, 40, 40) for i in range(6)] + [Arrival(5000 * MS, 1, 1)]
    calm = simulate(server(num_kv_tokens=10_000), arrivals, warm_up_share=0.0)
    tight = simulate(
        server(num_kv_tokens=192, kv_reservation="optimistic"), arrivals, warm_up_share=0.0
    )
    assert calm.num_preemptions == 0 < tight.num_preemptions
    assert calm.gap_counts.sum() <= 6 * 39
    assert tight.gaps_s.max() > 3 * calm.gaps_s.max()


def test_a_pipeline_of_four_is_no_faster_for_one_and_nearly_four_times_for_many() -> None:
    def finish(stages: int, count: int) -> float:
        piped = server(num_stages=stages, max_num_seqs=4, max_num_batched_tokens=4)
        arrivals = [Arrival(0, 4, 50) for _ in range(count)]
        return float(simulate(piped, arrivals, warm_up_share=0.0).e2e_s.max())

    assert finish(4, 1) == pytest.approx(finish(1, 1))
    assert finish(4, 64) < finish(1, 64)
    one_at_a_time = server(max_num_seqs=1, max_num_batched_tokens=4)
    four = replace(one_at_a_time, num_stages=4, max_num_seqs=4)
    arrivals = [Arrival(0, 4, 50) for _ in range(16)]
    alone, piped = (
        float(simulate(s, arrivals, warm_up_share=0.0).e2e_s.max()) for s in (one_at_a_time, four)
    )
    assert piped == pytest.approx(alone / 4, rel=0.05)


def test_synchronous_transfers_lengthen_everyones_steps_and_asynchronous_ones_do_not() -> None:
    arrivals = load(rate=20)
    transfers = KVTransfers(1e5, 1e9, is_async=False)
    sync = simulate(server(HINGE, transfers=transfers), arrivals)
    beside = simulate(server(HINGE, transfers=replace(transfers, is_async=True)), arrivals)
    without = simulate(server(HINGE), arrivals)
    assert sync.itl_quantile_s(0.99) > 1.3 * beside.itl_quantile_s(0.99)
    assert beside.itl_quantile_s(0.99) == pytest.approx(without.itl_quantile_s(0.99), rel=0.1)
    assert beside.ttft_quantile_s(0.5) > without.ttft_quantile_s(0.5)


def test_a_transfer_takes_its_bytes_over_the_link() -> None:
    sync = KVTransfers(1e5, 1e9, is_async=False)
    # 10 ms for the prompt's KV, then for all 101 tokens' after the end, which nobody waits for.
    result = simulate(server(transfers=sync, max_num_batched_tokens=128), [Arrival(0, 100, 1)])
    assert result.ttft_s.tolist() == [pytest.approx(0.020)]
    beside = simulate(
        server(transfers=replace(sync, is_async=True), max_num_batched_tokens=128),
        [Arrival(0, 100, 1), Arrival(0, 100, 1)],
        warm_up_share=0.0,
    )
    assert sorted(beside.ttft_s.tolist()) == pytest.approx([0.020, 0.030])


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(PlanInputError, match="does not fit into a KV pool"):
        simulate(server(num_kv_tokens=64), [Arrival(0, 100, 10)])
    with pytest.raises(PlanInputError, match="no request"):
        simulate(server(), [])
    with pytest.raises(PlanInputError, match="num_stages"):
        server(num_stages=0)
    for value in (math.nan, -0.1):
        with pytest.raises(PlanInputError, match="noise"):
            NoisyDuration(TEN_MS, noise=value)
    for rate in (0.0, math.nan, math.inf, -1.0):
        with pytest.raises(PlanInputError, match="rate"):
            load(rate=rate)


def test_lengths_keep_their_mean_and_their_limit() -> None:
    drawn = LengthDistribution(200, 0.5).draw(np.random.default_rng(1), 50_000)
    assert drawn.mean() == pytest.approx(200, rel=0.02)
    assert drawn.max() <= 800 and drawn.min() >= 1
    assert set(LengthDistribution(7).draw(np.random.default_rng(1), 5).tolist()) == {7}
    with pytest.raises(PlanInputError, match="below its mean"):
        LengthDistribution(10, 0.5, max_tokens=9)


def test_weighted_quantiles_count_each_value_as_often_as_it_was_seen() -> None:
    values, counts = np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0])
    assert weighted_quantile(values, counts, 0.98) == 1.0
    assert weighted_quantile(values, counts, 0.99) == 2.0
    assert weighted_quantile(values, counts, 1.0) == 3.0
    assert math.isnan(weighted_quantile(np.array([]), np.array([]), 0.5))
