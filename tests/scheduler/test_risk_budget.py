"""How much lateness a target still allows, over windows and for each stream."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from takt.scheduler.gap_risk import HEADROOM, GapRisk
from takt.scheduler.prefill_budget import StepBound, largest_chunk
from takt.scheduler.request import Request
from takt.scheduler.residuals import ResidualQuantile
from takt.scheduler.risk_budget import LATE_SHARE, LEAST_SHARE, RISKS, WINDOW_NS, RiskBudget
from takt.scheduler.step_time import StepFeatures
from takt.types.sampling_params import SamplingParams

MS = 1_000_000
DECODES = StepFeatures(1, 0, 400, 400)


class Host:
    """Steps of 10 ms and 1 ms for each token of a prompt, and residuals that are given."""

    def __init__(self, ratios: list[float]) -> None:
        self._residuals = ResidualQuantile(0.99, ratios)

    def predict_ns(self, features: StepFeatures) -> float:
        return MS * (10.0 + features.num_prefill_tokens)

    def p99_ns(self, features: StepFeatures) -> float:
        return self.predict_ns(features) * self.ratio(0.01)

    def ratio(self, late_share: float) -> float:
        return self._residuals.at(late_share)

    def late_share(self, features: StepFeatures, limit_ns: float) -> float:
        return self._residuals.late_share(limit_ns / self.predict_ns(features))


EVEN = [0.9 + 0.2 * i / 511 for i in range(512)]
"""Steps take 10 % less or more."""
HELD_UP = EVEN[:502] + [2.0 + 0.1 * i for i in range(10)]
"""So they do, but for one in fifty that takes 2 to 2.9 times as long."""


def test_late_gaps_of_the_last_window_are_taken_off_and_later_forgotten() -> None:
    budget = RiskBudget(LATE_SHARE)
    second = 1_000_000_000
    for i in range(30):
        budget.note(i * second, 100, False, 0.0, is_pressed=True)
    fresh = budget.allowance(0)
    assert fresh == pytest.approx(LATE_SHARE)
    budget.note(29 * second, 12, True, 0.0, is_pressed=True)
    assert budget.allowance(0) == pytest.approx(fresh - 12 / (3012 + 128), abs=1e-4)
    budget.note(29 * second, 40, True, 0.0, is_pressed=True)
    assert budget.allowance(0) == pytest.approx(LEAST_SHARE, abs=1e-4)
    budget.note(29 * second + WINDOW_NS, 100, False, 0.0, is_pressed=True)
    assert budget.allowance(0) == pytest.approx(LATE_SHARE)


def test_what_is_late_without_prompts_is_left_room_for() -> None:
    budget = RiskBudget(LATE_SHARE)
    budget.note(0, 10_000, False, 0.004, is_pressed=True)
    assert budget.allowance(0) == pytest.approx(0.006, abs=2e-4)


def test_prompts_that_come_seldom_may_risk_more() -> None:
    budget = RiskBudget(LATE_SHARE)
    budget.note(0, 900, False, 0.0, is_pressed=False)
    budget.note(0, 900, False, 0.0, is_pressed=True)
    assert 1.5 * LATE_SHARE < budget.allowance(0) < 2 * LATE_SHARE


@pytest.mark.parametrize("seed", range(2))
def test_no_window_exceeds_the_share_and_half_of_it_is_the_reserve(seed: int) -> None:
    rng, budget = random.Random(seed), RiskBudget(LATE_SHARE)
    last: deque[bool] = deque(maxlen=WINDOW_NS // (20 * MS))
    worst = num_late = 0
    for step in range(40_000):
        is_late = rng.random() < budget.allowance(0)
        num_late += is_late
        last.append(is_late)
        worst = max(worst, sum(last)) if step % 50 == 0 and len(last) == last.maxlen else worst
        budget.note(step * 20 * MS, 1, is_late, 0.0, is_pressed=True)
    assert 0.004 <= num_late / 40_000 <= 0.006
    assert worst <= LATE_SHARE * (last.maxlen or 0)


def choose_often(host: Host, target_ns: float, count: int = 4000) -> list[float]:
    budget, chosen = RiskBudget(LATE_SHARE), []
    budget.note(0, 1_000_000, False, 0.0, is_pressed=True)
    base = host.late_share(DECODES, target_ns)
    for _ in range(count):
        risk = budget.choose(host, DECODES, target_ns, base, 1.0)
        chosen.append(risk)
        budget.settle(1, 1.0, max(0.0, risk - base) if risk else 0.0)
    return chosen


def test_where_steps_are_even_the_whole_allowance_is_used_in_each() -> None:
    assert set(choose_often(Host(EVEN), 30.0 * MS)) == {0.008}


def test_where_few_steps_are_held_up_long_some_steps_take_all_the_risk_and_others_none() -> None:
    chosen = choose_often(Host(HELD_UP), 32.0 * MS)
    assert len(set(chosen)) == 2
    assert max(chosen) >= 0.02
    assert sum(chosen) / len(chosen) == pytest.approx(LATE_SHARE, rel=0.1)


def test_a_risk_that_the_decodes_take_by_themselves_costs_nothing() -> None:
    # Held up they are late whatever is beside them: 22 ms for 10.
    assert min(choose_often(Host(HELD_UP), 19.0 * MS)) >= 0.016


def test_a_question_changes_no_answer() -> None:
    host, target = Host(HELD_UP), 32.0 * MS
    budget, base = RiskBudget(LATE_SHARE), host.late_share(DECODES, target)
    budget.note(0, 1_000_000, False, 0.0, is_pressed=True)
    assert {budget.choose(host, DECODES, target, base, 1.0) for _ in range(100)} == {0.0}
    for _ in range(2):
        budget.settle(1, 1.0, 0.0)
    assert budget.choose(host, DECODES, target, base, 1.0) >= 0.02


def test_credit_comes_with_steps_that_are_made_not_with_bounds_that_are_asked_for() -> None:
    target, targets = round(32 * MS / HEADROOM), Counter({round(32 * MS / HEADROOM): 1})

    def chosen(num_asked: int) -> list[float]:
        risk, shares = GapRisk(Host(HELD_UP), LATE_SHARE), []
        for step in range(300):
            for _ in range(num_asked):
                bounds = risk.bounds([target], DECODES, 0, is_pressed=True)
            chunk = StepFeatures(1, 14 if bounds[0].late_share else 0, 400, 400)
            shares.append(bounds[0].late_share)
            risk.made(bounds, chunk, is_pressed=True)
            risk.ended(10 * MS, step * 10 * MS, 1, targets)
        return [*shares, risk.room]

    assert len(set(chosen(1))) > 2
    assert chosen(3) == chosen(1)


def test_what_is_owed_after_an_overload_is_forgotten_with_its_window() -> None:
    host, target = Host(HELD_UP), 32.0 * MS
    budget, base = RiskBudget(LATE_SHARE), host.late_share(DECODES, target)
    for _ in range(5000):  # the prompts of each step make it late
        budget.settle(1, 1.0, 1.0)
    budget.note(2 * WINDOW_NS, 1_000_000, False, 0.0, is_pressed=True)
    num_steps = 0
    while budget.choose(host, DECODES, target, base, 1.0) < 0.02:
        budget.settle(1, 1.0, 0.0)
        num_steps += 1
    assert num_steps <= 10


def test_a_miss_is_never_planned() -> None:
    quick = Host([0.5] * 512)  # all steps take half of what is expected
    tokens = largest_chunk(quick, DECODES, 0, 512, [StepBound(30.0 * MS, RISKS[-1])])
    assert quick.predict_ns(StepFeatures(1, tokens, 0, 0)) <= 30.0 * MS


def stream(name: str) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[1],
        sampling=SamplingParams(max_tokens=128),
        max_tokens=128,
        stop_token_ids=frozenset(),
        arrival_ns=0,
    )


def test_a_stream_that_has_had_its_late_gap_lowers_the_risk_until_it_ends() -> None:
    risk, target, both = GapRisk(Host(EVEN), LATE_SHARE), 30 * MS, StepFeatures(2, 0, 800, 800)

    def share() -> float:
        (bound,) = risk.bounds([target], both, 0, is_pressed=True)
        return bound.late_share

    for step in range(3000):
        risk.made([StepBound(30.0 * MS, 0.0, 0.0, target)], both, is_pressed=True)
        risk.ended(8 * MS, step * 10 * MS, 2, Counter({target: 2}))
    one, other = stream("one"), stream("other")
    before = share()
    risk.was_late(one, 127)
    assert share() < before
    risk.was_late(other, 127)
    assert share() <= RISKS[0]
    risk.leave(other)
    risk.was_late(one, 127)  # lost: it has no P99 of its own to keep any more
    assert share() == before


def test_each_target_has_a_budget_of_its_own() -> None:
    risk = GapRisk(Host(EVEN), LATE_SHARE)
    tight, loose = 20 * MS, 40 * MS
    targets = Counter({tight: 1, loose: 1})
    both = StepFeatures(2, 0, 800, 800)
    for step in range(1000):
        bounds = risk.bounds(targets, both, 0, is_pressed=True)
        risk.made(bounds, both, is_pressed=True)
        missed = risk.ended(round(HEADROOM * 30 * MS), step * 30 * MS, 2, targets)
        assert missed == [tight]
    shares = {b.target_ns: b.late_share for b in risk.bounds(targets, both, 0, is_pressed=True)}
    assert shares[tight] < shares[loose]
