from dataclasses import replace

import pytest

from takt.plan.assess import Caution, Question, assess, simulated_p99
from takt.plan.errors import PlanInputError
from takt.plan.hardware import parse_cluster
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.search import Plan, PlanRequest, make_plan
from takt.plan.topology import Pinned, Topology, topologies
from takt.plan.verdict import Verdict
from takt.plan.workload import Targets, Workload

QUICK = Caution(num_requests=500)


def plan(
    model: str,
    hardware: str,
    qps: float,
    targets: Targets,
    dtype: str = "fp16",
    **changes: object,
) -> Plan:
    request = PlanRequest(
        find_model(model),
        parse_cluster(hardware),
        parse_precision(dtype),
        Workload(512, 128, qps),
        targets,
        caution=QUICK,
    )
    return make_plan(replace(request, **changes))  # type: ignore[arg-type]


BRIEF = ("llama-3-70b", "16xA100-80G", 8.0)


@pytest.fixture(scope="module")
def brief_plan() -> Plan:
    return plan(*BRIEF, Targets(itl_s=3.7e-3, e2e_s=3.7e-3))


def test_the_70b_model_at_3_7_ms_is_a_physical_no_on_every_topology(brief_plan: Plan) -> None:
    assert brief_plan.verdict is Verdict.PHYSICAL_NO
    assert {a.verdict for a in brief_plan.assessments} == {Verdict.PHYSICAL_NO}
    assert brief_plan.floors.token_s > 3.7e-3
    planned = next(a for a in brief_plan.assessments if a.topology == Topology(2, 4, 2))
    assert planned.bounds.weight_read_s * 1e3 == pytest.approx(34.1, abs=0.05)
    assert planned.bounds.token_with_latency_s * 1e3 == pytest.approx(35.0, abs=0.1)
    assert planned.bounds.e2e_with_latency_s == pytest.approx(4.5, abs=0.02)
    assert planned.constraint.name == "e2e_p99"


def test_it_is_one_per_token_and_end_to_end_alone(brief_plan: Plan) -> None:
    for targets in (Targets(itl_s=3.7e-3), Targets(e2e_s=3.7e-3)):
        assert plan(*BRIEF, targets).verdict is Verdict.PHYSICAL_NO


def test_the_nearest_feasible_targets_of_the_hardware_are_named(brief_plan: Plan) -> None:
    (change,) = [c for c in brief_plan.changes if c.kind == "target"]
    assert "--slo-itl-p99-ms" in change.text and "--slo-e2e-p99-ms" in change.text
    assert change.topology.tp == 8  # a token needs all of a node's bandwidth
    words = change.text.split()
    itl, e2e = (float(words[words.index(f"--slo-{n}-p99-ms") + 1]) / 1e3 for n in ("itl", "e2e"))
    relaxed = plan(*BRIEF, Targets(itl_s=itl, e2e_s=e2e))
    assert relaxed.verdict is Verdict.HOLD


def test_other_precisions_are_shown_only_on_request(brief_plan: Plan) -> None:
    assert brief_plan.alternatives == []
    asked = [parse_precision(name) for name in ("fp16", "int8", "int4")]
    more = plan(
        *BRIEF,
        Targets(itl_s=3.7e-3),
        pinned=Pinned(2, 4, 2),
        other_precisions=asked,
    )
    assert [a.precision.name for a in more.alternatives] == ["int8", "int4"]
    assert [a.verdict for a in more.alternatives] == [Verdict.PHYSICAL_NO] * 2


@pytest.mark.parametrize(
    ("model", "hardware", "qps", "targets", "verdict", "binding"),
    [
        ("llama-3-70b", "1xA100-80G", 1.0, Targets(itl_s=1.0), Verdict.PHYSICAL_NO, "memory"),
        ("llama-3-8b", "1xH200", 1.0, Targets(itl_s=3.7e-3), Verdict.SILICON_NO, "itl_p99"),
        ("llama-3-8b", "1xA100-80G", 1.0, Targets(ttft_s=1e-3), Verdict.PHYSICAL_NO, "ttft_p99"),
        ("qwen3-1.7b", "1xH200", 4000.0, Targets(itl_s=0.1), Verdict.LOAD_NO, "load"),
        ("qwen3-1.7b", "1xH200", 90.0, Targets(itl_s=3.7e-3), Verdict.LOAD_NO, "itl_p99"),
        ("qwen3-1.7b", "1xH200", 5.0, Targets(3.7e-3, 0.2), Verdict.HOLD, "itl_p99"),
        ("llama-3-8b", "4xH200", 2.0, Targets(itl_s=3.7e-3), Verdict.HOLD, "itl_p99"),
    ],
)
def test_each_rung_is_reached_and_says_what_binds(
    model: str, hardware: str, qps: float, targets: Targets, verdict: Verdict, binding: str
) -> None:
    made = plan(model, hardware, qps, targets)
    assert made.verdict is verdict
    assert made.best.constraint.name == binding
    assert made.best.constraint.text
    if verdict is not Verdict.HOLD:
        assert made.changes
    else:
        assert made.best.was_simulated and made.best.margin >= 0


def test_more_devices_are_offered_where_they_help() -> None:
    made = plan("llama-3-8b", "1xH200", 1.0, Targets(itl_s=3.7e-3))
    kinds = [change.kind for change in made.changes]
    assert kinds[0] == "hardware" and kinds[-1] == "target"
    powers = [c.added_power_w for c in made.changes if c.kind == "hardware"]
    assert powers == sorted(powers)


def test_the_load_that_is_offered_holds() -> None:
    made = plan("qwen3-1.7b", "1xH200", 90.0, Targets(itl_s=3.7e-3, ttft_s=0.2))
    (change,) = [c for c in made.changes if c.kind == "load"]
    rate = float(change.text.split()[1])
    assert 0 < rate < 90
    assert plan("qwen3-1.7b", "1xH200", rate, Targets(3.7e-3, 0.2)).verdict is Verdict.HOLD


def test_a_load_far_beyond_any_is_answered_with_one_that_holds() -> None:
    made = plan("qwen3-1.7b", "1xH200", 1e9, Targets(itl_s=6e-3, ttft_s=0.2))
    assert made.verdict is Verdict.LOAD_NO
    (change,) = [c for c in made.changes if c.kind == "load"]
    assert 10 < float(change.text.split()[1]) < 200


def test_estimated_latencies_rise_with_the_load() -> None:
    question = Question(
        find_model("llama-3-8b"),
        parse_cluster("2xH200").accelerator,
        Workload(512, 128, 1.0),
        Targets(itl_s=1.0),
        QUICK,
    )
    seen = []
    for rate in (1.0, 4.0, 16.0, 40.0):
        more = replace(question, workload=replace(question.workload, requests_per_s=rate))
        found = assess(more, Topology(2, 1, 1), parse_precision("fp16"))
        assert found.predicted is not None
        seen.append(found.predicted.e2e_s)
    assert seen == sorted(seen)


def test_a_pinned_topology_that_is_wrong_is_told_of_a_better_one() -> None:
    made = plan("llama-3-8b", "8xH200", 2.0, Targets(itl_s=3.7e-3), pinned=Pinned(tp=1, pp=8, dp=1))
    assert made.verdict is Verdict.SILICON_NO
    assert made.changes[0].kind == "topology"
    assert made.changes[0].topology.tp > 1


def test_a_hold_stands_steps_that_are_five_percent_longer() -> None:
    targets = Targets(itl_s=6e-3, ttft_s=0.1)
    made = plan("llama-3-8b", "2xH200", 10.0, targets)
    assert made.verdict is Verdict.HOLD
    worse = Caution(bias=1.05, noise=0.05, num_requests=800, seed=99)
    question = Question(made.model, made.cluster.accelerator, made.workload, made.targets, worse)
    truth = simulated_p99(question, made.best.topology, made.precision, made.best)
    assert truth.worst(targets)[1] <= 1


def test_estimates_are_near_the_simulation() -> None:
    exact = Caution(bias=1.0, noise=0.0, num_requests=1000)
    question = Question(
        find_model("llama-3-8b"),
        parse_cluster("2xH200").accelerator,
        Workload(512, 128, 15.0),
        Targets(itl_s=6e-3, ttft_s=0.2),
        exact,
    )
    found = assess(question, Topology(2, 1, 1), parse_precision("fp16"))
    assert found.predicted is not None
    truth = simulated_p99(question, found.topology, found.precision, found)
    assert found.predicted.itl_s == pytest.approx(truth.itl_s, rel=0.05)
    assert found.predicted.ttft_s == pytest.approx(truth.ttft_s, rel=0.25)
    assert found.predicted.e2e_s == pytest.approx(truth.e2e_s, rel=0.10)


def test_topologies_divide_heads_layers_and_devices() -> None:
    found = topologies(find_model("qwen3-14b"), parse_cluster("16xH200"))
    assert all(t.num_devices <= 16 and 40 % t.tp == 0 for t in found)
    assert Topology(2, 4, 2) in found
    assert Topology(16, 1, 1) not in found
    # 9 heads and 3 KV heads
    small = topologies(find_model("smollm2-135m"), parse_cluster("4xH200"))
    assert {t.tp for t in small} == {1}


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        (lambda: Pinned(tp=0), "--tensor-parallel-size must be at least 1"),
        (lambda: Pinned(tp=3), "does not divide llama-3-8b"),
        (lambda: Pinned(tp=2, pp=2, dp=2), "needs 8 devices"),
        (lambda: Pinned(pp=64), "more than 32 layers"),
    ],
)
def test_impossible_topologies_are_refused(pinned, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanInputError, match=said):
        plan("llama-3-8b", "4xH200", 1.0, Targets(itl_s=1.0), pinned=pinned())


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_targets_and_loads_are_refused_by_name(value: float) -> None:
    with pytest.raises(PlanInputError, match="--slo-itl-p99-ms"):
        Targets(itl_s=value)
    with pytest.raises(PlanInputError, match="--qps"):
        Workload(512, 128, value)


def test_contradictions_are_refused() -> None:
    with pytest.raises(PlanInputError, match="no target is given"):
        Targets()
    with pytest.raises(PlanInputError, match="is below --slo-ttft-p99-ms"):
        Targets(ttft_s=0.2, e2e_s=0.1)
    with pytest.raises(PlanInputError, match="--isl"):
        Workload(0, 128, 1.0)
    too_long = Workload(8000, 500, 1.0)
    with pytest.raises(PlanInputError, match=r"8500 tokens .* context, 8192"):
        plan("llama-3-8b", "1xH200", 1.0, Targets(itl_s=1.0), workload=too_long)


def test_one_token_of_output_has_no_gaps_to_bind() -> None:
    made = plan(
        "llama-3-8b", "1xH200", 5.0, Targets(itl_s=1e-3, ttft_s=0.2), workload=Workload(512, 1, 5.0)
    )
    assert made.verdict is Verdict.HOLD
    assert made.best.predicted is not None and made.best.predicted.itl_s == 0


def test_experts_count_for_memory_and_for_reading() -> None:
    made = plan("mixtral-8x7b", "1xA100-80G", 1.0, Targets(itl_s=0.1))
    assert made.best.constraint.name == "memory"
    held = plan("mixtral-8x7b", "2xA100-80G", 1.0, Targets(itl_s=0.1))
    assert held.verdict is Verdict.HOLD
