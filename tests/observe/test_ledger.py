"""The ledger names what made a token late, and its milliseconds add up."""

from __future__ import annotations

import random

import numpy as np
import pytest
from planted_steps import MS, PER_KV_TOKEN_NS, PER_SEQ_NS, Planted, PlantedEngine

from takt.observe.ledger.causes import Cause
from takt.observe.ledger.ledger import SLO, Ledger
from takt.observe.ledger.report import report

TARGET = SLO(itl_p99_ms=8.0, ttft_p99_ms=100.0)

PLANTS = {
    "prefill_interference": lambda: Planted(prompt_tokens=256),
    "stolen_cpu": lambda: Planted(stolen_ns=14 * MS),
    "garbage_collection": lambda: Planted(gc_ns=15 * MS),
    "slow_client": lambda: Planted(blocked={"r0": 40 * MS}),
    "engine_host": lambda: Planted(host_ns=12 * MS),
    "delivery": lambda: Planted(delivery_ns=13 * MS),
    "contention": lambda: Planted(contention_ns=15 * MS),
}


def warm_up(engine: PlantedEngine) -> None:
    """Enough steps of either kind for a prediction; what is late here is not judged."""
    for index in range(120):
        engine.step(Planted(prompt_tokens=16 + index) if index % 6 == 0 else None)
    engine.ledger.settle()
    engine.ledger.kept_gaps.clear()
    engine.ledger.late_gaps.split_ns[:] = 0
    engine.ledger.late_gaps.num = 0
    engine.planted.clear()


@pytest.fixture
def engine() -> PlantedEngine:
    engine = PlantedEngine(TARGET)
    warm_up(engine)
    return engine


def top(split: np.ndarray) -> str:
    return Cause(int(np.argmax(np.where(np.arange(len(split)) == Cause.BASE, -1, split)))).label


@pytest.mark.parametrize("cause", PLANTS)
def test_a_planted_cause_is_named_and_its_time_is_found(engine: PlantedEngine, cause: str) -> None:
    engine.step()
    engine.step(PLANTS[cause](), cause)
    engine.step()
    engine.ledger.settle()
    late = engine.ledger.kept_gaps
    assert late
    for token in late:
        assert token.split_ns.sum() == pytest.approx(token.late_ns, rel=1e-9)
        assert (token.split_ns >= 0).all()
        assert top(token.split_ns) == cause
        # All but what a sequence always needs.
        assert token.split_ns[Cause[cause.upper()]] >= 0.9 * (token.late_ns - 4 * MS)
    assert engine.ledger.late_gaps.unexplained_share <= 0.05


def test_precision_and_recall_over_a_random_mixture(engine: PlantedEngine) -> None:
    rng = random.Random(7)
    for _ in range(1200):
        cause = rng.choice([*PLANTS, None, None])
        engine.step(PLANTS[cause]() if cause else None, cause)
        if rng.random() < 0.02:
            engine.ledger.settle()
    engine.ledger.settle()
    found = {(t.request_id, t.position): top(t.split_ns) for t in engine.ledger.kept_gaps}
    truth = {key: cause for key, cause in engine.planted.items() if key in found}
    assert len(truth) > 500
    for cause in PLANTS:
        meant = {key for key, name in truth.items() if name == cause}
        named = {key for key, name in found.items() if name == cause}
        assert len(meant & named) >= 0.9 * len(meant), f"recall of {cause}"
        assert len(meant & named) >= 0.9 * len(named), f"precision of {cause}"
    assert engine.ledger.late_gaps.unexplained_share <= 0.05


def test_the_servers_own_collections_are_told_from_the_engines(engine: PlantedEngine) -> None:
    engine.step(Planted(server_gc_ns=20 * MS))
    engine.ledger.settle()
    (first, *_) = engine.ledger.kept_gaps
    assert first.split_ns[Cause.GARBAGE_COLLECTION] == pytest.approx(20 * MS, rel=0.01)


def test_a_slow_run_that_nothing_explains_is_called_unexplained(engine: PlantedEngine) -> None:
    engine.step(Planted(mystery_ns=10 * MS))
    engine.ledger.settle()
    (first, *_) = engine.ledger.kept_gaps
    assert top(first.split_ns) == "unexplained"
    assert first.split_ns[Cause.UNEXPLAINED] >= 9 * MS


def test_a_server_without_a_cpu_is_not_slow_delivery(engine: PlantedEngine) -> None:
    engine.step(Planted(delivery_ns=2 * MS, waited_ns=13 * MS))
    engine.ledger.settle()
    for token in engine.ledger.kept_gaps:
        assert token.split_ns[Cause.STOLEN_CPU] == pytest.approx(13 * MS, rel=0.01)
        assert token.split_ns[Cause.DELIVERY] == pytest.approx(2 * MS, rel=0.1)


def test_stolen_time_behind_a_run_is_not_the_engines_host_time(engine: PlantedEngine) -> None:
    engine.step()
    engine.step(Planted(stolen_behind_ns=12 * MS))
    engine.step()
    engine.ledger.settle()
    first = engine.ledger.kept_gaps[0]
    assert top(first.split_ns) == "stolen_cpu"
    assert first.split_ns[Cause.STOLEN_CPU] >= 11 * MS


def test_an_engine_whose_predictions_follow_a_disturbance_does_not_hide_it(
    engine: PlantedEngine,
) -> None:
    engine.step(Planted(stolen_ns=14 * MS, predicted_ns=18 * MS))
    engine.ledger.settle()
    for token in engine.ledger.kept_gaps:
        assert token.split_ns[Cause.STOLEN_CPU] >= 13 * MS


def test_a_machine_that_is_never_quiet_has_predictions_too() -> None:
    engine, rng = PlantedEngine(TARGET), random.Random(5)

    def noise() -> int:
        return round(rng.uniform(0.05, 0.6) * 3 * MS)

    for index in range(400):
        tokens = 16 + index if index % 6 == 0 else 0
        engine.step(Planted(prompt_tokens=tokens, stolen_ns=noise()))
    engine.ledger.settle()
    assert engine.ledger.steps.learned.is_ready
    # 5 % to 60 % of 3 ms were stolen from each step; the least disturbed ones were learned from.
    seqs, context, none = np.array([4.0]), np.array([2300.0]), np.zeros(1)
    (predicted,) = engine.ledger.steps.learned.predict(seqs, none, context, context)
    assert predicted == pytest.approx(3 * MS + 4 * PER_SEQ_NS + 2300 * PER_KV_TOKEN_NS, rel=0.15)
    engine.ledger.kept_gaps.clear()
    engine.step(Planted(prompt_tokens=256, stolen_ns=noise()), "prefill_interference")
    engine.ledger.settle()
    assert {top(t.split_ns) for t in engine.ledger.kept_gaps} == {"prefill_interference"}


def test_steps_without_the_sequence_are_preemption_or_queueing(engine: PlantedEngine) -> None:
    away = frozenset({"r0"})
    for preempts, cause in ((1, Cause.PREEMPTION), (0, Cause.QUEUEING)):
        engine.ledger.kept_gaps.clear()
        for index in range(4):
            engine.step(Planted(without=away, preempts=preempts if index == 0 else 0))
        engine.step()
        engine.ledger.settle()
        (token,) = engine.ledger.kept_gaps
        assert token.request_id == "r0"
        # Four steps of five.
        assert token.split_ns[cause] == pytest.approx(0.8 * token.late_ns, rel=0.05)


def test_stolen_time_that_others_made_up_for_is_not_charged(engine: PlantedEngine) -> None:
    """A thread lost 14 ms, but the step took no longer: then it cost nothing."""
    engine.step(Planted(host_ns=12 * MS))
    engine.ledger.settle()
    charged = engine.ledger.late_gaps.split_ns[Cause.STOLEN_CPU]
    engine.step(Planted(stolen_ns=14 * MS, mystery_ns=-14 * MS, host_ns=12 * MS))
    engine.ledger.settle()
    assert engine.ledger.late_gaps.split_ns[Cause.STOLEN_CPU] == pytest.approx(charged, abs=MS)


def test_batch_growth_is_what_the_other_decodes_cost() -> None:
    engine = PlantedEngine(SLO(itl_p99_ms=3.5), num_seqs=1)
    others = [f"r{i}" for i in range(1, 32)]
    engine.seqs += PlantedEngine(TARGET, num_seqs=32).seqs[1:]
    for index in range(64):
        engine.step(Planted(without=frozenset(others[index % 31 :])))
    engine.ledger.settle()
    engine.ledger.kept_gaps.clear()
    engine.step()
    engine.step()
    engine.ledger.settle()
    token = engine.ledger.kept_gaps[-32]
    assert top(token.split_ns) == "batch_growth"


def test_restart_of_the_engine_begins_anew(engine: PlantedEngine) -> None:
    engine._step_id = 0
    for seq in engine.seqs:
        seq.num_tokens = 0
    engine.step()
    engine.step(PLANTS["garbage_collection"]())
    engine.ledger.settle()
    assert {top(t.split_ns) for t in engine.ledger.kept_gaps} == {"garbage_collection"}


def test_a_gap_between_steps_that_nobody_saw_is_unexplained() -> None:
    ledger = PlantedEngine(TARGET).ledger
    ledger.late_gap("r", 0, 1, 0, 20 * MS, 8 * MS, -1, -1, 5 * MS)
    ledger.settle()
    (token,) = ledger.kept_gaps
    assert token.split_ns[Cause.SLOW_CLIENT] == 5 * MS
    assert token.split_ns[Cause.UNEXPLAINED] == 15 * MS


def test_a_flood_of_late_gaps_is_bounded_and_counted() -> None:
    engine = PlantedEngine(SLO(itl_p99_ms=0.001), num_seqs=64)
    for _ in range(400):
        engine.step()
    engine.ledger.settle()
    assert engine.ledger.late_gaps.num + engine.ledger.num_lost == 399 * 64
    assert len(engine.ledger.kept_gaps) == 1024


def test_first_token_is_split_over_queue_own_prompt_and_others(engine: PlantedEngine) -> None:
    """It arrives, queues for 100 ms, and shares its steps' prompt tokens half and half."""
    arrival = engine.clock.now_ns()
    sent = arrival + 2 * MS
    engine.clock.advance(102 * MS)
    engine.step()
    scheduled = engine.clock.now_ns()
    for _ in range(4):
        engine.step(Planted(prompt_tokens=128))
    written = engine.clock.now_ns() + MS
    engine.ledger.first_token(
        "new",
        0,
        arrival_ns=arrival,
        sent_ns=sent,
        scheduled_ns=scheduled,
        written_ns=written,
        target_ns=engine.ledger.ttft_target_ns,
        step=engine._step_id - 1,
        num_own_tokens=256,
        blocked_ns=0,
    )
    engine.ledger.settle()
    (token,) = engine.ledger.kept_first_tokens
    split = token.split_ns
    assert split.sum() == pytest.approx(token.late_ns, rel=1e-9)
    assert split[Cause.QUEUEING] == pytest.approx(scheduled - sent, rel=1e-9)
    assert split[Cause.DELIVERY] == pytest.approx(3 * MS, rel=0.05)
    prompts = split[Cause.PREFILL_INTERFERENCE]
    assert prompts == pytest.approx(256 * 90_000, rel=0.1)
    assert split[Cause.BASE] >= prompts


def test_report_counts_what_was_in_time_and_says_what_binds(engine: PlantedEngine) -> None:
    for index in range(200):
        engine.step(PLANTS["stolen_cpu"]() if index % 20 == 0 else None)
    engine.ledger.request(is_good=True)
    engine.ledger.request(is_good=False)
    answer = report(engine.ledger, engine.clock.now_ns())
    assert answer["itl"]["num_late"] > 0
    assert answer["itl"]["attainment"] == pytest.approx(
        1 - answer["itl"]["num_late"] / answer["itl"]["num"], abs=1e-6
    )
    assert not answer["itl"]["is_held"]
    assert answer["binding"]["slo"] == "itl"
    assert answer["binding"]["cause"] == "stolen_cpu"
    assert answer["goodput"]["num_good"] == 1
    assert answer["goodput"]["share"] == 0.5
    shares = [c["share"] for c in answer["late_gaps"]["causes"].values() if c["share"] is not None]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    worst = answer["worst_gaps"][0]
    assert sum(worst["causes"].values()) == pytest.approx(worst["ms"], rel=0.01)


def test_windows_end_and_the_whole_remembers_them(engine: PlantedEngine) -> None:
    before = engine.ledger.windows.whole().itl.num
    for _ in range(3):
        for _ in range(10):
            engine.step()
        engine.ledger.settle()
        engine.clock.advance(31_000 * MS)
        engine.ledger.settle()
        for seq in engine.seqs:
            seq.num_tokens = 0
    assert len(engine.ledger.windows.past) == 3
    assert engine.ledger.windows.whole().itl.num == before + (10 + 9 + 9) * 4


def test_without_an_slo_late_is_three_solo_steps_or_12_ms() -> None:
    engine = PlantedEngine(SLO())
    warm_up(engine)
    assert engine.ledger.gap_target_ns == 12 * MS
    slow = PlantedEngine(SLO(), num_seqs=1)
    slow.seqs[0].context = 100_000
    for _ in range(50):
        slow.step()
    slow.ledger.settle()
    # 3 ms + 10 ms of KV, and the host's time, three times.
    assert slow.ledger.gap_target_ns == pytest.approx(3 * 13.25 * MS, rel=0.05)


def test_percentiles_are_those_of_the_values_within_two_percent() -> None:
    ledger: Ledger = PlantedEngine(TARGET).ledger
    rng = np.random.default_rng(3)
    gaps = rng.lognormal(np.log(5e6), 0.5, 40_000).astype(np.int64)
    for gap in gaps.tolist():
        ledger.gap(gap, 0)
    ledger.settle()
    itl = ledger.windows.whole().itl
    for percent in (1, 50, 99, 99.9):
        exact = np.percentile(gaps, percent, method="inverted_cdf") / 1e6
        assert itl.percentile_ms(percent) == pytest.approx(exact, rel=0.021)
