"""Whether first tokens wait for other prompts: 1 ms for a token, 500 ms for a full step."""

from __future__ import annotations

from takt.scheduler.step_time import StepFeatures
from takt.scheduler.urgency import Prompt, PromptUrgency

MS = 1_000_000


def judge(cost_beside: int = 4) -> PromptUrgency:
    """Steps beside streams take `cost_beside` ms for each token of a prompt."""
    urgency = PromptUrgency(MS, 500)
    for _ in range(500):
        urgency.observe(StepFeatures(2, 10, 800, 800), 10 * cost_beside * MS)
    return urgency


def prompt(num_left: int, slack_ms: int, ttft_ms: int = 3000) -> Prompt:
    spare_ms = ttft_ms // 10
    return Prompt(num_left, (slack_ms + spare_ms) * MS, ttft_ms * MS, 128)


DONE = prompt(1, 2500)
LONG = prompt(2000, 7000)


def test_a_prompt_that_is_done_waits_for_one_that_would_be_late_beside_it() -> None:
    assert judge().holds([DONE, LONG], 0)


def test_it_waits_for_nobody_who_has_time_beside_it() -> None:
    assert not judge().holds([DONE, prompt(2000, 9000)], 0)
    assert not judge(cost_beside=3).holds([DONE, LONG], 0)


def test_it_waits_only_while_its_own_deadline_allows() -> None:
    assert judge().holds([DONE, LONG], 900 * MS)
    assert not judge().holds([DONE, LONG], 1100 * MS)


def test_nobody_waits_while_another_that_can_be_done_in_a_step_has_to_begin() -> None:
    assert not judge().holds([DONE, prompt(400, 1300), LONG], 0)


def test_whoever_is_late_in_any_case_is_not_waited_for() -> None:
    assert not judge().holds([DONE, prompt(2000, 1900)], 0)


def test_prompts_add_up() -> None:
    shorts = [prompt(400, 2000 + 200 * i) for i in range(4)]
    assert not judge().holds([DONE, *shorts[:1]], 0)
    assert judge().holds([DONE, *shorts], 0)


def test_where_prompts_wait_for_the_batch_one_is_waited_for_if_that_costs_it_less() -> None:
    def step_ns(num_streams: int) -> float:
        return (6 + num_streams) * MS

    done, late = prompt(1, -100), prompt(600, 100)
    assert judge().holds([done, late], 0, step_ns)
    assert judge().holds([done, prompt(600, 9000)], 0, step_ns)
    assert not judge().holds([done, late], 0)
    assert not judge().holds([done] * 5 + [late], 0, step_ns)
    assert not judge().holds([done, prompt(2000, 100)], 0, step_ns)
    assert not judge().holds([done], 0, step_ns)


def test_whoever_is_done_with_the_next_step_is_done() -> None:
    def step_ns(num_streams: int) -> float:
        return (6 + num_streams) * MS

    assert not judge().holds([prompt(400, 2500)], 0, step_ns)
    assert judge().holds([prompt(400, 2500)] * 2, 0, step_ns)
