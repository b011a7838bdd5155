"""The scheduler's promises one by one: refusals, ends, limits of a step, aborts."""

from __future__ import annotations

from typing import Any

import pytest
from schedule_runner import (
    ANY,
    ScheduleRunner,
    check_texts,
    make_request,
    next_token,
    prompt,
    solo_text,
)

from takt.config import CacheOptions, SchedulerOptions
from takt.errors import ConfigError, InvalidRequestError
from takt.scheduler.create import create_scheduler
from takt.scheduler.request import RequestStatus


# -- what can never be served --------------------------------------------------------------------
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


# -- ends ----------------------------------------------------------------------------------------
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


# -- limits of a step ----------------------------------------------------------------------------
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


# -- aborts --------------------------------------------------------------------------------------
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


def test_the_fake_model_depends_on_all_that_it_may() -> None:
    request = make_request("a", [1, 2, 3], 20)
    text, _ = solo_text(request)
    assert len(set(text)) > 3
    assert text != [next_token("x", 0, [1, 2, 3, *text[:index]]) for index in range(20)]
