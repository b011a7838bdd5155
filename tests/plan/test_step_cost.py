from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takt.plan.communication import all_reduce_s, wire_bound_s
from takt.plan.hardware import known_accelerators
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.published import fit_other_kernels_s, published_steps
from takt.plan.step_cost import StepCost
from takt.plan.topology import Topology
from takt.scheduler.step_time import StepFeatures

DEVICES = known_accelerators()
MODELS = [find_model(name) for name in ("qwen3-1.7b", "llama-3-8b", "llama-3-70b", "mixtral-8x7b")]
device_names = st.sampled_from(sorted(DEVICES))
models = st.sampled_from(MODELS)
degrees = st.sampled_from((1, 2, 4, 8))


def step(seqs: int, chunk: int, context: int = 600) -> StepFeatures:
    tokens = seqs * context
    return StepFeatures(seqs, chunk, tokens + chunk, tokens + chunk * (chunk + 1) // 2)


@pytest.mark.parametrize("published", published_steps("judged"), ids=lambda p: p.label)
def test_steps_it_was_not_fitted_on_are_within_a_fifth(published) -> None:  # type: ignore[no-untyped-def]
    assert abs(published.error()) < 0.2


def test_the_constant_that_was_fitted_is_the_one_in_use() -> None:
    fitted = fit_other_kernels_s(published_steps("fitted"))
    for name in ("A100-80G", "H100", "H200"):
        assert DEVICES[name].other_kernels_s_per_layer == pytest.approx(fitted, rel=0.01)


@given(device_names, models, degrees, st.integers(1, 200), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_is_never_slower(device, model, tp, seqs, chunk) -> None:  # type: ignore[no-untyped-def]
    slow = DEVICES[device]
    fast = replace(slow, bandwidth_bytes_s=1.3 * slow.bandwidth_bytes_s)
    topology, precision = Topology(tp, 1, 1), parse_precision("bf16")
    times = [
        StepCost(model, d, topology, precision).predict_ns(step(seqs, chunk)) for d in (slow, fast)
    ]
    assert times[1] <= times[0]


@given(device_names, models, degrees, st.integers(1, 200), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_more_load_is_never_faster(device, model, tp, seqs, chunk) -> None:  # type: ignore[no-untyped-def]
    cost = StepCost(model, DEVICES[device], Topology(tp, 1, 1), parse_precision("bf16"))
    time = cost.predict_ns(step(seqs, chunk))
    assert cost.predict_ns(step(seqs + 1, chunk)) >= time * (1 - 1e-9)
    assert cost.predict_ns(step(seqs, chunk + 64)) >= time * (1 - 1e-9)
    assert cost.predict_ns(step(seqs, chunk, 700)) >= time * (1 - 1e-9)


@given(device_names, models, st.sampled_from((2, 4, 8)), st.floats(1.0, 10.0))
@settings(max_examples=60, deadline=None)
def test_tensor_parallel_cost_rises_with_link_latency(device, model, tp, factor) -> None:  # type: ignore[no-untyped-def]
    near = DEVICES[device]
    links = {n: replace(a, latency_s=factor * a.latency_s) for n, a in near.all_reduces.items()}
    far = replace(near, all_reduces=links)
    times = [
        StepCost(model, d, Topology(tp, 1, 1), parse_precision("bf16")).breakdown(step(1, 0))
        for d in (near, far)
    ]
    assert times[1].all_reduce >= times[0].all_reduce
    # With all else equal the step as a whole is longer too, unless the host hides it.
    assert times[1].total >= times[0].total


def test_pipelines_shorten_no_token_and_tensor_parallelism_does() -> None:
    model, device, precision = MODELS[2], DEVICES["A100-80G"], parse_precision("bf16")

    def token(tp: int, pp: int) -> float:
        return StepCost(model, device, Topology(tp, pp, 1), precision).decode_s(1, 576)

    assert token(2, 4) >= token(2, 1)
    assert token(8, 1) < token(4, 1) < token(2, 1)


def test_the_parts_of_a_step_add_up_and_name_the_largest() -> None:
    cost = StepCost(MODELS[1], DEVICES["H200"], Topology(1, 1, 1), parse_precision("bf16"))
    parts = cost.breakdown(step(1, 0))
    assert parts.largest == "gemm"
    assert parts.total * 1e9 == pytest.approx(cost.predict_ns(step(1, 0)))
    assert parts.total == pytest.approx(4.85e-3, rel=0.1)


def test_a_reduction_across_nodes_costs_more_than_within_one() -> None:
    device = DEVICES["A100-80G"]
    assert all_reduce_s(device, 1, 1e6) == 0
    assert all_reduce_s(device, 16, 16384) > 5 * all_reduce_s(device, 8, 16384)
    # 16 KB between 2: 5.0 us and less than a copy at 162 GB/s; 16 MB: its bus bandwidth.
    assert all_reduce_s(device, 2, 16384) == pytest.approx(5.0e-6 + 16384 / 199e9)
    assert all_reduce_s(device, 8, 2**24) == pytest.approx(5.7e-6 + 1.75 * 2**24 / 228e9)
    for ranks in (2, 4, 8):
        assert wire_bound_s(device, ranks, 16384) < all_reduce_s(device, ranks, 16384)


def test_a_prefill_step_is_near_flat_below_the_knee_and_linear_above() -> None:
    cost = StepCost(MODELS[1], DEVICES["H200"], Topology(1, 1, 1), parse_precision("bf16"))
    small, knee, large, larger = (cost.mixed_s(0, 0, c) for c in (16, 128, 1024, 2048))
    assert knee < 1.15 * small
    assert larger == pytest.approx(2 * large, rel=0.2)
