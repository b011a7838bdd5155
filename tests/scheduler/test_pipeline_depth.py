"""The search for the depth of a pipeline: where it goes, and that it comes to a stand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takt.clock import ManualClock
from takt.errors import InvariantError
from takt.scheduler.pipeline_depth import DEFAULT_RULES, PipelineDepth

STEPS = DEFAULT_RULES.steps_per_sample
LONGEST_SEARCH = 2 * (DEFAULT_RULES.samples_per_depth + 1)
"""Samples that one neighbour takes: tried, given up, and the kept depth measured again."""
PER_NS = 1e-6
"""Tokens a nanosecond, of a rate of 1."""


class Load:
    """Steps of a pipeline whose throughput and unwritten share depend on its depth alone."""

    def __init__(
        self,
        rate_of: Callable[[int], float],
        share_of: Callable[[int], float],
        *,
        first: int,
        most: int,
        num_running: int = 8,
    ) -> None:
        self.rate_of = rate_of
        self.share_of = share_of
        self.num_running = num_running
        self.clock = ManualClock()
        self.controller = PipelineDepth(
            first=first, most=most, unwritten_share=lambda: self.share_of(self.controller.depth)
        )
        self.depths = [first]
        """At the start and after each sample."""

    def step(self, **changes: int | bool) -> None:
        start_ns = self.clock.now_ns()
        seqs, depth = self.num_running, self.controller.depth
        self.clock.advance(max(1, round(seqs / (PER_NS * self.rate_of(depth)))))
        values = {"num_decode_seqs": seqs, "num_prefill_tokens": 0, "num_running": seqs, **changes}
        self.controller.observe(start_ns=start_ns, end_ns=self.clock.now_ns(), **values)

    def run(self, num_samples: int) -> list[int]:
        """Returns the depths after each of the samples."""
        for _ in range(num_samples):
            for _ in range(STEPS):
                assert self.controller.depth == self.depths[-1], "it moves at samples alone"
                self.step()
            self.depths.append(self.controller.depth)
        return self.depths[-num_samples:]


def moves(depths: list[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(depths)]


@pytest.mark.parametrize("first", [1, 2, 5])
def test_the_fastest_depth_is_found(first: int) -> None:
    rates = {1: 1.0, 2: 1.5, 3: 2.0, 4: 1.7, 5: 1.4}
    load = Load(rates.__getitem__, lambda _: 0.1, first=first, most=5)
    assert load.run(80)[-1] == 3


def test_between_the_borders_nothing_is_tried() -> None:
    load = Load(lambda depth: float(depth), lambda _: 0.28, first=2, most=5)
    assert set(load.run(100)) == {2}


def test_a_pool_that_is_reserved_and_empty_makes_the_pipeline_shallower_at_no_loss() -> None:
    flat = Load(lambda _: 1.0, lambda _: 0.5, first=4, most=5)
    assert flat.run(100)[-1] == 1
    dear = Load(lambda depth: float(depth), lambda _: 0.5, first=4, most=5)
    assert dear.run(100)[-1] == 4, "it would cost a quarter of the throughput"
    assert 5 not in dear.depths


def test_equal_throughput_moves_nothing_where_the_pool_is_free() -> None:
    load = Load(lambda _: 1.0, lambda _: 0.0, first=3, most=5)
    assert load.run(100)[-1] == 3
    assert {2, 4} <= set(load.depths), "both ways were tried"


def test_a_try_that_is_much_worse_is_short() -> None:
    rates = {1: 1.0, 2: 2.0, 3: 1.0}
    load = Load(rates.__getitem__, lambda _: 0.0, first=2, most=3)
    assert load.run(100)[-1] == 2
    for depth in (1, 3):
        num_samples = 1 + DEFAULT_RULES.samples_of_hopeless
        assert load.depths.count(depth) == num_samples


def test_a_search_that_was_led_astray_is_put_right() -> None:
    """The depth that it began at stood still while it was measured."""
    rates = {1: 1.0, 2: 2.0, 3: 1.0}
    load = Load(lambda _: 0.5, lambda _: 0.0, first=2, most=3)
    load.run(DEFAULT_RULES.samples_per_depth)
    load.rate_of = rates.__getitem__
    assert 3 in load.run(20)
    assert load.run(100)[-1] == 2


def test_another_load_begins_a_new_search() -> None:
    load = Load(lambda depth: 5.0 - depth, lambda _: 0.1, first=2, most=4)
    assert load.run(100)[-1] == 1
    load.rate_of, load.num_running = (lambda depth: float(depth)), 40
    assert load.run(100)[-1] == 4


def test_time_without_work_is_no_steps_time() -> None:
    """Pauses a million times as long as a step, and the throughput of each depth still shows."""
    load = Load(lambda depth: float(depth), lambda _: 0.1, first=1, most=3)
    for number in range(60 * STEPS):
        is_first = number % STEPS == 0
        load.clock.advance(10**13 if is_first else 0)
        load.step(after_idle=is_first)
    assert load.controller.depth == 3


def test_prompts_are_work_too() -> None:
    load = Load(lambda _: 1.0, lambda _: 0.1, first=1, most=2)
    for _ in range(40 * STEPS):
        load.step(num_prefill_tokens=64 if load.controller.depth == 2 else 0)
    assert load.controller.depth == 2


def test_a_depth_outside_of_its_range_is_refused() -> None:
    for first in (0, 4):
        with pytest.raises(InvariantError):
            PipelineDepth(first=first, most=3, unwritten_share=float)


tables = st.integers(1, 6).flatmap(
    lambda most: st.tuples(
        st.integers(1, most),
        st.lists(st.floats(0.01, 10), min_size=most, max_size=most),
        st.lists(st.floats(0, 1), min_size=most, max_size=most),
    )
)


@settings(max_examples=30, deadline=None)
@given(table=tables)
def test_under_a_constant_load_it_comes_to_a_stand(
    table: tuple[int, list[float], list[float]],
) -> None:
    first, rates, shares = table
    load = Load(
        lambda depth: rates[depth - 1],
        lambda depth: shares[depth - 1],
        first=first,
        most=len(rates),
    )
    search = DEFAULT_RULES.samples_per_depth + LONGEST_SEARCH * len(rates)
    load.run(2 * search + DEFAULT_RULES.second_look)
    assert len(set(load.run(200))) == 1
    assert all(1 <= depth <= len(rates) for depth in load.depths)
    assert all(abs(move) <= 1 for move in moves(load.depths))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_load_takes_it_out_of_its_range_or_more_than_one_step_at_once(
    data: st.DataObject,
) -> None:
    most = data.draw(st.integers(1, 5))
    noise = st.tuples(st.floats(0.01, 10), st.floats(0, 1), st.integers(1, 64))
    load = Load(lambda _: 1.0, lambda _: 0.0, first=data.draw(st.integers(1, most)), most=most)
    for rate, share, num_running in data.draw(st.lists(noise, min_size=20, max_size=60)):
        load.rate_of, load.share_of = (lambda _, r=rate: r), (lambda _, s=share: s)
        load.num_running = num_running
        load.run(1)
    assert all(1 <= depth <= most for depth in load.depths)
    assert all(abs(move) <= 1 for move in moves(load.depths))
