"""The batches that keep a pipeline's stages busy."""

from __future__ import annotations

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
