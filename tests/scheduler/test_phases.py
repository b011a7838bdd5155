"""Generated tokens in another precision than a prompt's: who is computed with whom, who shares."""

from __future__ import annotations

from schedule_runner import ScheduleRunner, check_texts, make_request


def test_a_block_with_generated_tokens_is_no_prefix_of_a_prompt() -> None:
    """The next turn of a chat: prompt, answer, and what is asked then."""
    for phases_differ, num_cached in ((True, 4), (False, 12)):
        runner = ScheduleRunner(phases_differ=phases_differ)
        first = make_request("a", [1, 2, 1, 2, 1, 1], max_tokens=8)
        runner.add(first)
        runner.drain()
        follow_up = make_request("b", [*first.token_ids[:13], 2, 2], max_tokens=2)
        runner.add(follow_up)
        runner.drain()
        assert follow_up.num_cached_tokens == num_cached
        check_texts(runner)


def test_a_preempted_sequence_finds_what_it_had_generated() -> None:
    runner = ScheduleRunner(
        num_blocks=6,
        phases_differ=True,
        kv_reservation="optimistic",
        max_num_batched_tokens=8,
        max_model_len=24,
    )
    runner.add(make_request("a", [1, 2, 1, 1], 14), make_request("b", [1, 2, 1, 2], 14))
    runner.drain()
    assert runner.scheduler.num_preemptions > 0
    check_texts(runner)


def test_what_another_engine_generated_is_computed_as_generated() -> None:
    runner = ScheduleRunner(phases_differ=True)
    moved = make_request("a", [1, 2, 1, 2, 1, 2, 2], max_tokens=3, num_generated_before=3)
    prompt = make_request("b", [2, 2, 2], max_tokens=3)
    runner.add(moved, prompt)
    first = runner.step()
    assert [(i.request, i.start, i.num_tokens) for i in first.prompts] == [
        (moved, 0, 4),
        (prompt, 0, 3),
    ]
    second = runner.step()
    assert [(i.request, i.start, i.num_tokens) for i in second.prompts] == [(moved, 4, 3)]
    assert second.num_generated_tokens == second.total_num_scheduled_tokens == 4
    runner.drain()
    check_texts(runner)


def test_what_another_engine_generated_is_cut_where_prompts_go_whole() -> None:
    """With others on their way, too: one that has begun is not kept waiting by newer ones."""
    runner = ScheduleRunner(phases_differ=True, enable_chunked_prefill=False)
    runner.add(make_request("a", [1] * 16, max_tokens=2, num_generated_before=15))
    for i in range(40):
        runner.add(make_request(f"b{i}", [2, 1], max_tokens=4 + 3 * i % 5))
    for _ in range(12):
        runner.step()
    assert "a" in {name for name, _ in runner.finished}
    runner.drain()
    check_texts(runner)
