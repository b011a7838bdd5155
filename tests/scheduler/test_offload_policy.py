"""The offload policy: when, what, where to."""

from __future__ import annotations

import random

import pytest

from takt.errors import ConfigError
from takt.scheduler.offload import (
    Candidate,
    Move,
    OffloadPolicy,
    ReplicaPressure,
    is_pressed,
    plan_moves,
    score,
)

POLICY = OffloadPolicy()
SECOND = 1_000_000_000


def pressure(memory: float, waiting: int = 0, wait_s: float = 0.0) -> ReplicaPressure:
    return ReplicaPressure(memory, waiting, round(wait_s * SECOND))


def candidates(count: int, share: float = 0.05, **hits: float) -> list[Candidate]:
    rates = {int(name[1:]): rate for name, rate in hits.items()}
    return [Candidate(f"r{i}", share, rates) for i in range(count)]


@pytest.mark.parametrize(
    ("memory", "waiting", "expected"),
    [(0.86, 3, True), (0.85, 3, False), (0.86, 2, False), (1.0, 100, True), (0.0, 100, False)],
)
def test_a_replica_is_pressed_if_it_is_full_and_some_wait(
    memory: float, waiting: int, expected: bool
) -> None:
    assert is_pressed(POLICY, pressure(memory, waiting)) is expected


@pytest.mark.parametrize(
    ("state", "hit_rate", "expected"),
    [
        (pressure(0.0), 1.0, 1.0),
        (pressure(1.0, 9, 5.0), 0.0, 0.0),
        (pressure(0.5, 3, 0.5), 0.2, 0.4 * 0.5 + 0.35 * 0.5 + 0.25 * 0.2),
        (pressure(1.0, 3, 1.0), 1.0, 0.25),
        (pressure(0.25, 0, 9.0), 0.0, 0.3),
    ],
)
def test_the_score_weighs_memory_wait_and_hits(
    state: ReplicaPressure, hit_rate: float, expected: float
) -> None:
    assert score(POLICY, state, hit_rate) == pytest.approx(expected, abs=1e-12)


def test_requests_move_in_order_while_the_source_is_pressed() -> None:
    states = {0: pressure(0.95, 5, 2.0), 1: pressure(0.2)}
    assert plan_moves(POLICY, 0, states, candidates(5)) == [
        Move("r0", 1),
        Move("r1", 1),
        Move("r2", 1),
    ], "with two left it is not pressed any more"


def test_nothing_moves_from_a_replica_that_is_not_pressed() -> None:
    states = {0: pressure(0.80, 50, 9.0), 1: pressure(0.0)}
    assert plan_moves(POLICY, 0, states, candidates(5)) == []


def test_the_destination_is_not_filled_beyond_the_threshold() -> None:
    states = {0: pressure(0.95, 9, 2.0), 1: pressure(0.70)}
    assert len(plan_moves(POLICY, 0, states, candidates(9, share=0.07))) == 2
    assert plan_moves(POLICY, 0, states, candidates(9, share=0.2)) == []


def test_a_request_that_fits_nowhere_holds_up_no_other() -> None:
    states = {0: pressure(0.95, 9, 2.0), 1: pressure(0.5)}
    large, small = Candidate("large", 0.4, {}), Candidate("small", 0.1, {})
    assert plan_moves(POLICY, 0, states, [large, small]) == [Move("small", 1)]


def test_cached_prompts_decide_between_equal_places_and_hold_a_request_where_it_is() -> None:
    states = {0: pressure(0.9, 4, 0.0), 1: pressure(0.7), 2: pressure(0.7)}
    assert plan_moves(POLICY, 0, states, candidates(1, i2=0.5)) == [Move("r0", 2)]
    # Better by 0.4 x 0.2 there, worse by 0.25: it stays.
    assert plan_moves(POLICY, 0, states, candidates(1, i0=1.0)) == []


def test_what_is_equal_stays() -> None:
    states = {0: pressure(0.86, 3, 0.0), 1: pressure(0.70)}
    assert plan_moves(POLICY, 0, states, candidates(3)) == [], "0.064 is less than the least gain"
    assert plan_moves(OffloadPolicy(min_gain=0.05), 0, states, candidates(3))


def test_what_does_not_pay_stays() -> None:
    states = {0: pressure(0.95, 5, 2.0), 1: pressure(0.2), 2: pressure(0.1)}
    moves = plan_moves(POLICY, 0, states, candidates(1), lambda c, replica: replica == 1)
    assert moves == [Move("r0", 1)]
    assert plan_moves(POLICY, 0, states, candidates(1), lambda c, replica: False) == []


@pytest.mark.parametrize("seed", range(100))
def test_any_moves_keep_the_rules(seed: int) -> None:
    rng = random.Random(seed)
    states = {
        r: pressure(rng.random(), rng.randint(0, 9), 2 * rng.random())
        for r in range(rng.randint(2, 5))
    }
    asked = [
        Candidate(f"r{i}", 0.3 * rng.random(), {r: rng.random() for r in states})
        for i in range(rng.randint(0, 12))
    ]
    moves = plan_moves(POLICY, 0, states, asked)
    by_id = {c.request_id: c for c in asked}
    if not is_pressed(POLICY, states[0]):
        assert moves == []
    assert len({move.request_id for move in moves}) == len(moves)
    assert len(moves) <= max(0, states[0].num_waiting - POLICY.min_waiting + 1)
    memory = {r: state.memory for r, state in states.items()}
    for move in moves:
        candidate = by_id[move.request_id]
        assert move.destination != 0
        here, there = (
            score(POLICY, states[r], candidate.hit_rates[r]) for r in (0, move.destination)
        )
        assert there - here >= POLICY.min_gain
        memory[move.destination] += candidate.pool_share
        assert memory[move.destination] <= POLICY.memory_threshold


def test_shares_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"hot_share lies between 0 and 1, got 1\.5"):
        OffloadPolicy(hot_share=1.5)
