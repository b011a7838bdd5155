"""Who is admitted: blocks that are used, reserved, shared, or only cached; windows; crowds."""

from __future__ import annotations

import pytest
from schedule_runner import STOP, ScheduleRunner, check_texts, make_request, prompt

from takt.errors import InvalidRequestError


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
    assert runner.scheduler.occupancy()[2] == 1
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
