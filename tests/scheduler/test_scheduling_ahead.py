"""Scheduling ahead of results: placeholders, late stops, blocks that wait for a step."""

from __future__ import annotations

import pytest
from schedule_runner import ANY, ScheduleRunner, check_texts, make_request, prompt

from takt.errors import InvariantError


def test_decodes_run_ahead_of_their_tokens() -> None:
    runner = ScheduleRunner(max_steps_in_flight=3)
    runner.add(make_request("a", prompt(4), 5))
    request = runner.submit().scheduled[0].request
    for start in (4, 5):
        (item,) = runner.submit().scheduled
        assert (item.start, item.num_tokens, item.samples) == (start, 1, True)
    assert request.num_in_flight_tokens == 3
    assert request.num_tokens == 4
    runner.complete()
    assert (request.num_in_flight_tokens, request.num_tokens) == (2, 5)
    runner.drain()
    check_texts(runner)


def test_nothing_runs_ahead_of_the_last_token() -> None:
    runner = ScheduleRunner(max_steps_in_flight=3)
    runner.add(make_request("a", prompt(4), 2))
    runner.submit()
    runner.submit()
    assert runner.submit().is_empty
    runner.complete()
    assert [end.finish_reason for end in runner.complete()] == ["length"]


def test_token_after_a_stop_is_dropped_and_blocks_wait_for_its_step() -> None:
    runner = ScheduleRunner(max_steps_in_flight=3)
    runner.add(make_request("a", prompt(4), 9, stops=ANY))
    for _ in range(3):
        runner.submit()
    (end,) = runner.complete()
    assert end.finish_reason == "stop"
    assert runner.kv.num_used_blocks == 2
    assert runner.complete() == []
    assert runner.kv.num_used_blocks == 2, "the third step still writes"
    assert runner.complete() == []
    assert runner.kv.num_used_blocks == 0
    assert len(runner.text("a")) == 1


def test_blocks_of_an_aborted_request_wait_for_the_step_in_flight() -> None:
    runner = ScheduleRunner(max_steps_in_flight=2, num_blocks=4)
    runner.add(make_request("a", prompt(12), 2))
    runner.submit()
    runner.abort("a")
    runner.add(make_request("b", prompt(12, 3), 1))
    assert runner.submit().is_empty
    assert runner.scheduler.occupancy()[2] == 1
    runner.complete()
    assert not runner.submit().is_empty
    runner.drain()


def test_tokens_on_the_way_survive_preemption() -> None:
    runner = ScheduleRunner(
        num_blocks=6, kv_reservation="optimistic", max_steps_in_flight=2, max_num_seqs=3
    )
    for index, name in enumerate("abc"):
        runner.add(make_request(name, prompt(4, index + 1), 9))
    runner.drain()
    assert runner.scheduler.num_preemptions > 0
    check_texts(runner)


def test_nobody_is_preempted_for_blocks_that_a_step_in_flight_brings_back() -> None:
    runner = ScheduleRunner(num_blocks=4, kv_reservation="optimistic", max_steps_in_flight=2)
    runner.add(make_request("a", prompt(4), 9, stops=ANY), make_request("b", prompt(7, 3), 4))
    runner.submit()
    runner.submit()
    runner.complete()  # a stops; its blocks are those of the second step until then
    assert runner.submit().is_empty
    runner.complete()
    assert [item.start for item in runner.submit().scheduled] == [8]
    runner.drain()
    assert runner.scheduler.num_preemptions == 0
    check_texts(runner)


def test_preempted_request_does_not_come_back_before_its_step_in_flight() -> None:
    runner = ScheduleRunner(
        max_num_seqs=1,
        scheduling_policy="priority",
        kv_reservation="optimistic",
        max_steps_in_flight=3,
    )
    runner.add(make_request("low", prompt(6), 4, priority=2))
    runner.submit()
    runner.add(make_request("high", prompt(6, 3), 1, priority=1))
    assert [request.request_id for request in runner.submit().preempted] == ["low"]
    runner.abort("high")
    assert runner.submit().is_empty
    runner.complete()
    assert [item.request.request_id for item in runner.submit().scheduled] == ["low"]
    runner.drain()
    check_texts(runner)


def test_too_many_steps_in_flight_is_an_error() -> None:
    runner = ScheduleRunner(max_steps_in_flight=1)
    runner.add(make_request("a", prompt(30), 2))
    runner.submit()
    with pytest.raises(InvariantError):
        runner.scheduler.schedule(0)


def test_steps_are_updated_in_order_and_complete() -> None:
    runner = ScheduleRunner(max_steps_in_flight=2)
    runner.add(make_request("a", prompt(4), 4))
    runner.submit()
    runner.submit()
    first, second = runner.in_flight
    with pytest.raises(InvariantError, match="step 1"):
        runner.scheduler.update(second[0], second[1])
    with pytest.raises(InvariantError, match="1 tokens, 0 came"):
        runner.scheduler.update(first[0], [])
