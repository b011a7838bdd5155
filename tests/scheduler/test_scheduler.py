"""The scheduler's promises one by one: limits, ends, aborts, steps in flight."""

from __future__ import annotations

from typing import Any

import pytest
from schedule_runner import (
    STOP,
    VOCAB_SIZE,
    ScheduleRunner,
    check_texts,
    make_request,
    next_token,
    solo_text,
)

from takt.config import CacheOptions, SchedulerOptions
from takt.errors import ConfigError, InvalidRequestError, InvariantError
from takt.scheduler.create import create_scheduler
from takt.scheduler.request import RequestStatus

ANY = tuple(range(VOCAB_SIZE))


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *[2] * (length - 1)]


# -- what can never be served -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("length", "max_tokens", "sampling", "options", "param", "numbers"),
    [
        (0, 4, {}, {}, "prompt", ()),
        (64, 1, {}, {}, "prompt", (64,)),
        (65, 0, {}, {}, "prompt", (65, 64)),
        (60, 5, {}, {}, "max_tokens", (60, 5, 64, 4)),
        (4, 4, {"n": 5}, {}, "n", (5, 4)),
        (20, 13, {}, {"num_blocks": 7}, "max_tokens", (8, 7)),
        (6, 4, {"n": 3}, {"num_blocks": 6}, "max_tokens", (8, 6)),
        (17, 1, {}, {"enable_chunked_prefill": False}, "prompt", (17, 16)),
        (
            9,
            1,
            {"prompt_logprobs": 0, "n": 2},
            {"enable_chunked_prefill": False, "max_num_rows": 9},
            "prompt_logprobs",
            (9, 2, 10),
        ),
    ],
)
def test_impossible_request_is_refused_with_both_numbers(
    length: int,
    max_tokens: int,
    sampling: dict[str, Any],
    options: dict[str, Any],
    param: str,
    numbers: tuple[int, ...],
) -> None:
    runner = ScheduleRunner(**options)
    with pytest.raises(InvalidRequestError) as caught:
        runner.add(make_request("a", prompt(length) if length else [], max_tokens, **sampling))
    assert caught.value.param == param
    for number in numbers:
        assert str(number) in str(caught.value)
    assert not runner.scheduler.has_work
    runner.add(make_request("a", prompt(3), 2))
    runner.drain()


@pytest.mark.parametrize(
    ("length", "max_tokens", "options"),
    [
        (63, 1, {}),
        (64, 0, {}),
        (20, 13, {"num_blocks": 8}),
        (16, 1, {"enable_chunked_prefill": False}),
    ],
)
def test_largest_possible_request_is_served(
    length: int, max_tokens: int, options: dict[str, Any]
) -> None:
    runner = ScheduleRunner(**options)
    runner.add(make_request("a", prompt(length), max_tokens))
    runner.drain()
    check_texts(runner)
    assert ("a", 0) in runner.finished


def test_request_id_in_use_is_refused() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(3)))
    with pytest.raises(InvalidRequestError, match="'a'"):
        runner.add(make_request("a", prompt(4)))
    runner.drain()
    runner.add(make_request("a", prompt(4)))


def test_configuration_that_cannot_work() -> None:
    runner = ScheduleRunner()

    def create(**options: Any) -> None:
        limits = {"max_num_rows": options.pop("max_num_rows", None)}
        create_scheduler(SchedulerOptions(**options), CacheOptions(), runner.kv, 64, **limits)

    with pytest.raises(ConfigError, match="'random'"):
        create(scheduling_policy="random")
    with pytest.raises(ConfigError, match="8, less than max_num_seqs, 9"):
        create(max_num_seqs=9, max_num_batched_tokens=8)
    with pytest.raises(ConfigError, match="max_num_rows is 3"):
        create(max_num_seqs=4, max_num_rows=3)


# -- ends -------------------------------------------------------------------------------------
def test_length() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(5), 3))
    runner.drain()
    end = runner.finished["a", 0]
    assert (len(runner.text("a")), end.finish_reason, end.stop_token_id) == (3, "length", None)


def test_stop_token_ends_and_stays_in_the_text() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(5), 8, stops=ANY))
    runner.drain()
    end = runner.finished["a", 0]
    assert len(runner.text("a")) == 1
    assert (end.finish_reason, end.stop_token_id) == ("stop", runner.text("a")[0])


def test_stop_token_that_is_also_the_last_is_a_stop() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(5), 1, stops=ANY))
    runner.drain()
    assert runner.finished["a", 0].finish_reason == "stop"


@pytest.mark.parametrize("min_tokens", [1, 3])
def test_no_stop_before_min_tokens(min_tokens: int) -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(5), 8, stops=ANY, min_tokens=min_tokens))
    runner.drain()
    assert len(runner.text("a")) == min_tokens + 1


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_scoring_ends_with_the_prompt(n: int, logprobs: int | None) -> None:
    runner = ScheduleRunner(max_num_batched_tokens=4)
    runner.add(make_request("a", prompt(9), 0, n=n, prompt_logprobs=logprobs))
    runner.drain()
    assert sorted(runner.finished) == [("a", choice) for choice in range(n)]
    for end in runner.finished.values():
        assert (end.finish_reason, end.request.output_token_ids) == ("length", [])
        assert end.request.status is RequestStatus.FINISHED


# -- limits of a step -------------------------------------------------------------------------
@pytest.mark.parametrize("num_rows", [4, 5, 7])
def test_scored_prompts_are_cut_to_the_rows(num_rows: int) -> None:
    runner = ScheduleRunner(max_num_rows=num_rows)
    runner.add(make_request("a", prompt(30), 3, prompt_logprobs=0))
    runner.add(make_request("b", prompt(9, 3), 3, n=3))
    first = runner.step()
    assert first.scheduled[0].num_tokens == num_rows
    runner.drain()
    check_texts(runner)


def test_last_token_of_a_prompt_waits_for_rows_of_all_choices() -> None:
    runner = ScheduleRunner(max_num_rows=4, max_num_seqs=4)
    runner.add(make_request("a", prompt(3), 4, prompt_logprobs=0))
    runner.add(make_request("b", prompt(6, 3), 4, n=3))
    first = runner.step()
    assert [(item.request.request_id, item.num_tokens) for item in first.scheduled] == [
        ("a", 3),
        ("b", 5),
    ]
    second = runner.step()
    assert [len(item.forks) for item in second.scheduled] == [0, 2]


def test_scored_prompt_is_computed_whole() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(9), 1))
    runner.drain()
    runner.add(make_request("b", prompt(9), 1, prompt_logprobs=0))
    output = runner.step()
    assert (output.scheduled[0].start, output.scheduled[0].num_tokens) == (0, 9)
    runner.drain()
    assert runner.finished["b", 0].request.num_cached_tokens == 0


# -- aborts -----------------------------------------------------------------------------------
def test_abort_ends_all_choices_at_any_time() -> None:
    for num_steps in range(5):
        runner = ScheduleRunner(max_num_batched_tokens=4)
        runner.add(make_request("a", prompt(7), 9, n=3), make_request("b", prompt(5, 3), 4))
        for _ in range(num_steps):
            runner.step()
        runner.abort("a")
        assert sorted(runner.aborted) == [("a", 0), ("a", 1), ("a", 2)]
        assert all(one.status is RequestStatus.FINISHED for one in runner.aborted.values())
        runner.drain()
        check_texts(runner)
        assert list(runner.finished) == [("b", 0)]


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("num_steps", range(5))
def test_abort_of_one_choice_spares_its_siblings(choice: int, num_steps: int) -> None:
    runner = ScheduleRunner(max_num_batched_tokens=4)
    runner.add(make_request("a", prompt(7), 6, n=3))
    for _ in range(num_steps):
        runner.step()
    runner.abort("a", choice)
    assert list(runner.aborted) == [("a", choice)]
    runner.drain()
    check_texts(runner)
    assert sorted(runner.finished) == [("a", other) for other in range(3) if other != choice]


def test_abort_of_what_is_unknown_or_over() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(5), 1))
    runner.drain()
    assert runner.scheduler.abort("a") == []
    assert runner.scheduler.abort("never") == []
    runner.add(make_request("b", prompt(5), 4, n=2))
    assert runner.scheduler.abort("b", 2) == []


def test_many_aborts_while_waiting() -> None:
    runner = ScheduleRunner(max_num_seqs=1)
    for index in range(500):
        runner.add(make_request(f"r{index}", prompt(3), 2))
    for index in range(500):
        if index % 50:
            runner.abort(f"r{index}")
    assert runner.scheduler.num_waiting == 10
    runner.drain()
    assert len(runner.finished) == 10
    assert len(runner.aborted) == 490


# -- steps in flight --------------------------------------------------------------------------
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
    assert runner.scheduler.num_waiting_for_capacity == 1
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


# -- reservation ------------------------------------------------------------------------------
def test_cached_blocks_that_nobody_uses_are_no_savings() -> None:
    runner = ScheduleRunner(num_blocks=6)
    runner.add(make_request("a", prompt(9), 1))
    runner.drain()
    runner.add(make_request("b", prompt(12, 3), 5))
    runner.step()
    assert runner.kv.num_used_blocks == 3
    runner.add(make_request("c", prompt(9), 1))
    runner.step()
    # b takes 4 blocks in all; c shares 2 cached ones, but they are 2 of the 2 that are left.
    assert runner.scheduler.num_waiting_for_capacity == 1
    runner.drain()
    assert runner.finished["c", 0].request.num_cached_tokens == 8


def test_blocks_that_running_sequences_use_are_counted_once() -> None:
    runner = ScheduleRunner(num_blocks=5)
    runner.add(make_request("a", prompt(9), 4))
    runner.step()
    runner.add(make_request("b", prompt(9), 4))
    runner.step()
    # Each takes 3 blocks, 2 of them the same.
    assert runner.scheduler.num_running == 2
    runner.drain()
    check_texts(runner)


def test_decodes_leave_a_running_prompt_its_blocks() -> None:
    runner = ScheduleRunner(
        num_blocks=12, kv_reservation="optimistic", max_num_seqs=2, max_num_batched_tokens=4
    )
    runner.add(make_request("a", prompt(4), 40))
    runner.step()
    runner.add(make_request("b", prompt(36, 3), 4))
    preempted = [request.request_id for _ in range(12) for request in runner.step().preempted]
    assert preempted == ["b"], "the last in order gives way before a's third block is taken"
    runner.drain()
    check_texts(runner)


# -- load -------------------------------------------------------------------------------------
@pytest.mark.parametrize("reservation", ["full", "optimistic"])
def test_crowd_of_equal_prompts(reservation: str) -> None:
    runner = ScheduleRunner(
        num_blocks=40, kv_reservation=reservation, max_num_seqs=8, max_num_batched_tokens=24
    )
    for index in range(60):
        runner.add(
            make_request(f"r{index}", prompt(10 + index % 7), 12, arrival_ns=index, stops=(STOP,))
        )
    runner.drain()
    check_texts(runner)
    assert len(runner.finished) == 60
    assert runner.first_scheduled == sorted(
        runner.first_scheduled, key=lambda request: request.arrival_ns
    )
    assert runner.scheduler.prefix_cache_queries == sum(10 + index % 7 for index in range(60))
    assert 0 < runner.scheduler.prefix_cache_hits < runner.scheduler.prefix_cache_queries


def test_windows_need_less_of_their_pool() -> None:
    # 56 tokens are 14 blocks of full attention, but 7 are enough for a window of 8 and steps of 16.
    runner = ScheduleRunner(num_blocks=(14, 8), windows=(None, 8))
    runner.add(make_request("a", prompt(30), 27))
    most = 0
    while runner.scheduler.has_work:
        runner.step()
        most = max(most, runner.kv.pools[1].num_used)
    assert 0 < most <= 8
    check_texts(runner)


def test_texts_of_all_choices_are_found_again() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(6), 16, n=3))
    runner.drain()
    texts = [prompt(6) + runner.text("a", choice) for choice in range(3)]
    assert len({tuple(text[6:12]) for text in texts}) == 3
    for choice, text in enumerate(texts):
        runner.add(make_request(f"again{choice}", text, 1))
        runner.drain()
        # All but the last token were computed: 21 tokens, 5 blocks.
        assert runner.finished[f"again{choice}", 0].request.num_cached_tokens == 20


def test_forks_pass_the_window_with_their_parent() -> None:
    runner = ScheduleRunner(windows=(None, 6), max_num_batched_tokens=30, max_steps_in_flight=2)
    runner.add(make_request("a", prompt(30), 4, n=2))
    (item,) = runner.step().scheduled
    own, fork = (runner.kv.block_table(one, 1).tolist() for one in (item.request, *item.forks))
    assert own == fork
    assert own[:6] == [-1] * 6, "the token at 30 sees from 25 on"


def test_windows_of_steps_in_flight_are_reserved() -> None:
    # Steps of 4 tokens, 3 in flight: a window of 5 may hold ceil((4 + 12 + 3 - 1) / 4) + 1 blocks.
    options = {"windows": (5,), "max_num_batched_tokens": 4, "max_steps_in_flight": 3}
    runner = ScheduleRunner(num_blocks=5, **options)
    with pytest.raises(InvalidRequestError, match="need 6 KV blocks"):
        runner.add(make_request("a", prompt(40), 9))
    runner = ScheduleRunner(num_blocks=6, **options)
    runner.add(make_request("a", prompt(40), 9), make_request("b", prompt(40, 3), 9))
    runner.drain()
    check_texts(runner)


@pytest.mark.parametrize(("num_blocks", "num_running"), [(9, 1), (10, 2)])
def test_windows_shrink_when_the_prompt_is_computed(num_blocks: int, num_running: int) -> None:
    # Of a window of 5, decodes 3 steps ahead hold ceil((4 + 3 + 3 - 1) / 4) + 1 = 4 blocks at most,
    # and a prompt in steps of 4 holds 6.
    runner = ScheduleRunner(
        num_blocks=num_blocks, windows=(5,), max_num_batched_tokens=4, max_steps_in_flight=3
    )
    runner.add(make_request("a", prompt(8), 20))
    runner.step()
    runner.add(make_request("b", prompt(30, 3), 4))
    runner.step()
    assert runner.scheduler.num_running == 1
    runner.step()
    assert runner.scheduler.num_running == num_running
    runner.drain()
    check_texts(runner)


def test_the_fake_model_depends_on_all_that_it_may() -> None:
    request = make_request("a", [1, 2, 3], 20)
    text, _ = solo_text(request)
    assert len(set(text)) > 3
    assert text != [next_token("x", 0, [1, 2, 3, *text[:index]]) for index in range(20)]
