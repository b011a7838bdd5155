"""The batches that keep a pipeline's stages busy."""

from __future__ import annotations

import pytest
from schedule_runner import ScheduleRunner, check_texts, make_request, prompt


def decodes(runner: ScheduleRunner) -> list[str]:
    return [item.request.request_id for item in runner.submit().scheduled]


def test_decodes_are_spread_over_the_stages_and_none_runs_ahead_of_its_token() -> None:
    runner = ScheduleRunner(
        max_steps_in_flight=2, num_micro_batches=2, max_num_seqs=5, max_num_batched_tokens=20
    )
    for index, name in enumerate("abcde"):
        runner.add(make_request(name, prompt(4, index + 1), 9))
    assert decodes(runner) == list("abcde")
    assert decodes(runner) == [], "each waits for its first token"
    runner.complete()
    assert decodes(runner) == ["a", "b", "c"]
    assert decodes(runner) == ["d", "e"]
    runner.complete()
    assert decodes(runner) == ["a", "b", "c"]
    runner.drain()
    check_texts(runner)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    runner = ScheduleRunner(max_steps_in_flight=3, num_micro_batches=3, max_num_batched_tokens=8)
    runner.add(make_request("a", prompt(20), 3))
    starts = [runner.submit().scheduled[0].start for _ in range(3)]
    assert starts == [0, 8, 16]
    runner.drain()
    check_texts(runner)


def test_decodes_are_spread_over_as_many_steps_as_there_are_to_be() -> None:
    runner = ScheduleRunner(
        max_steps_in_flight=3, num_micro_batches=3, max_num_seqs=6, max_num_batched_tokens=30
    )
    for index, name in enumerate("abcdef"):
        runner.add(make_request(name, prompt(4, index + 1), 9))
    assert decodes(runner) == list("abcdef")
    runner.complete()
    assert [decodes(runner) for _ in range(3)] == [["a", "b"], ["c", "d"], ["e", "f"]]
    runner.scheduler.depth = 2
    runner.complete()
    assert decodes(runner) == ["a", "b"], "four are on their way"
    runner.complete()
    runner.complete()
    assert decodes(runner) == ["c", "d", "e"]
    runner.scheduler.depth = 1
    runner.complete()
    runner.complete()
    assert decodes(runner) == list("abcdef")
    runner.drain()
    check_texts(runner)


def test_what_is_reserved_and_not_written_is_a_share_of_the_pool() -> None:
    runner = ScheduleRunner(num_blocks=10, max_steps_in_flight=2, num_micro_batches=2)
    share = runner.scheduler.kv_unwritten_share
    assert share(0) == 0
    # 12 of 40 slots are reserved: 8 + 4 tokens, the last of which is never written.
    runner.add(make_request("a", prompt(8), 5))
    assert share(0) == 0, "nothing is reserved for one that waits"
    runner.submit()
    assert share(8) == pytest.approx(12 / 40), "all 8 are still to be written"
    runner.complete()
    assert share(0) == pytest.approx(4 / 40)
    runner.step()
    assert share(0) == pytest.approx(3 / 40)
    runner.drain()
    assert share(0) == 0


def test_of_a_window_what_it_will_hold_counts() -> None:
    runner = ScheduleRunner(num_blocks=(20, 8), windows=(None, 5), max_num_batched_tokens=8)
    runner.add(make_request("a", prompt(16), 9))
    runner.step()
    # 24 tokens at the end: 6 of 20 blocks; of the window ceil((4 + 8 + 3 - 1) / 4) + 1 = 5 of 8.
    assert runner.scheduler.kv_unwritten_share(0) == pytest.approx((5 * 4 - 4) / (8 * 4))
    runner.drain()
