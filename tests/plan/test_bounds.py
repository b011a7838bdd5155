"""Worked values of Llama-3-70B on A100s, 512 in and 128 out."""

import pytest

from takt.plan.bounds import cluster_floors, physical_bounds
from takt.plan.hardware import parse_cluster
from takt.plan.memory import memory_fit
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.topology import Topology
from takt.plan.workload import Workload

CLUSTER = parse_cluster("16xA100-80G")
MODEL = find_model("llama-3-70b")
WORKLOAD = Workload(512, 128, 8.0)


@pytest.mark.parametrize(
    ("tp", "pp", "weights", "weight_read_ms", "token_ms"),
    [
        (2, 4, "fp16", 34.09, 35.0),
        (2, 4, "int8", 17.30, 18.2),
        (2, 4, "int4", 9.43, 10.4),
        (8, 1, "fp16", 8.52, 9.6),
        (8, 1, "int8", 4.33, 5.4),
        (8, 1, "int4", 2.36, 3.4),
        (4, 2, "fp16", 17.04, 18.0),
    ],
)
def test_a_token_is_bounded_by_its_weight_read_and_latencies(
    tp: int, pp: int, weights: str, weight_read_ms: float, token_ms: float
) -> None:
    bounds = physical_bounds(
        MODEL, CLUSTER.accelerator, Topology(tp, pp, 1), parse_precision(weights), WORKLOAD
    )
    assert bounds.weight_read_s * 1e3 == pytest.approx(weight_read_ms, rel=0.005)
    assert bounds.token_with_latency_s * 1e3 == pytest.approx(token_ms, rel=0.03)
    assert bounds.weight_read_s < bounds.token_s <= bounds.token_with_latency_s


def test_a_pipelined_prompt_takes_its_stage_times_and_the_whole_4_5_seconds() -> None:
    bounds = physical_bounds(
        MODEL, CLUSTER.accelerator, Topology(2, 4, 2), parse_precision("fp16"), WORKLOAD
    )
    # Chunks of 128 take 7 stage times of 8.4 ms, 58.7 ms; three larger ones are a little faster.
    assert 55e-3 < bounds.ttft_s < 58.7e-3
    assert bounds.e2e_with_latency_s == pytest.approx(4.50, rel=0.005)


@pytest.mark.parametrize(
    ("weights", "token_ms", "prefill_ms", "e2e_ms"),
    [("fp16", 4.26, 14.1, 555), ("int8", 2.16, 7.06, 281.7), ("int4", 1.18, 14.1, 163.9)],
)
def test_floors_without_communication(
    weights: str, token_ms: float, prefill_ms: float, e2e_ms: float
) -> None:
    floors = cluster_floors(MODEL, CLUSTER, parse_precision(weights), WORKLOAD)
    assert floors.token_s * 1e3 == pytest.approx(token_ms, rel=0.005)
    assert floors.prefill_s * 1e3 == pytest.approx(prefill_ms, rel=0.005)
    assert floors.e2e_s * 1e3 == pytest.approx(e2e_ms, rel=0.005)


def test_replicas_change_nothing_for_a_request() -> None:
    one, two = (
        physical_bounds(
            MODEL, CLUSTER.accelerator, Topology(2, 4, dp), parse_precision("fp16"), WORKLOAD
        )
        for dp in (1, 2)
    )
    assert one == two


def test_memory_of_a_device_is_weights_reserve_and_kv() -> None:
    fit = memory_fit(MODEL, CLUSTER.accelerator, Topology(8, 1, 1), parse_precision("fp16"))
    assert fit.weights_bytes == pytest.approx(70.55e9 * 2 / 8, rel=1e-3)
    room = 80e9 - 3.5e9 - fit.weights_bytes
    assert fit.num_kv_tokens == pytest.approx(room / (327_680 / 8), rel=1e-6)
    halved = memory_fit(
        MODEL, CLUSTER.accelerator, Topology(8, 1, 1), parse_precision("fp16", "fp8")
    )
    assert halved.num_kv_tokens == pytest.approx(2 * fit.num_kv_tokens, rel=1e-6)


def test_weights_that_do_not_fit_leave_no_kv() -> None:
    fit = memory_fit(MODEL, CLUSTER.accelerator, Topology(1, 1, 1), parse_precision("fp16"))
    assert fit.num_kv_tokens < 0
