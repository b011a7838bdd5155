"""Golden traces: who computes what in each step."""

from __future__ import annotations

from schedule_runner import ScheduleRunner, check_texts, make_request, prompt

from takt.scheduler.output import SchedulerOutput


def shares(output: SchedulerOutput) -> list[str]:
    """One word for each scheduled sequence: `id[.choice]:first-end`, `*` if it samples."""
    words = []
    for item in output.scheduled:
        request = item.request
        name = request.request_id + (f".{request.choice}" if request.sampling.n > 1 else "")
        forks = "".join(f"+{fork.choice}" for fork in item.forks)
        end = item.start + item.num_tokens
        words.append(f"{name}:{item.start}-{end}{'*' if item.samples else ''}{forks}")
    return words


def trace(runner: ScheduleRunner) -> list[list[str]]:
    steps = []
    while runner.scheduler.has_work:
        steps.append(shares(runner.step()))
    return steps


def test_decodes_first_then_prompts_in_order_of_arrival() -> None:
    runner = ScheduleRunner(max_num_batched_tokens=10)
    runner.add(make_request("a", prompt(4), 4), make_request("b", prompt(13, 3), 2))
    runner.add(make_request("c", prompt(6, 4), 2))
    assert trace(runner) == [
        ["a:0-4*", "b:0-6"],
        ["a:4-5*", "b:6-13*", "c:0-2"],
        ["a:5-6*", "b:13-14*", "c:2-6*"],
        ["a:6-7*", "c:6-7*"],
    ]
    check_texts(runner)


def test_whole_prompts_without_chunking() -> None:
    runner = ScheduleRunner(max_num_batched_tokens=10, enable_chunked_prefill=False)
    runner.add(make_request("a", prompt(4), 3), make_request("b", prompt(8, 3), 1))
    runner.add(make_request("c", prompt(2, 4), 1))
    assert trace(runner) == [
        ["a:0-4*"],  # b does not fit any more, and c does not overtake it
        ["a:4-5*", "b:0-8*"],
        ["a:5-6*", "c:0-2*"],
    ]


def test_priority_before_arrival() -> None:
    runner = ScheduleRunner(scheduling_policy="priority", max_num_batched_tokens=4)
    runner.add(
        make_request("low", prompt(4), 1, priority=5),
        make_request("late", prompt(4, 3), 1, priority=1, arrival_ns=9),
        make_request("early", prompt(4, 4), 1, priority=1, arrival_ns=3),
    )
    assert trace(runner) == [["early:0-4*"], ["late:0-4*"], ["low:0-4*"]]


def test_prompts_that_run_go_on_in_the_policys_order() -> None:
    runner = ScheduleRunner(scheduling_policy="priority", max_num_batched_tokens=8)
    runner.add(make_request("low", prompt(20), 1, priority=5))
    first = shares(runner.step())
    runner.add(make_request("high", prompt(8, 3), 1, priority=1))
    second = shares(runner.step())
    # What runs is not displaced under full reservation, and goes before what waits.
    assert (first, second) == (["low:0-8"], ["low:8-16"])
    assert trace(runner) == [["low:16-20*", "high:0-4"], ["high:4-8*"]]


def test_prefix_hit_skips_what_is_computed() -> None:
    runner = ScheduleRunner()
    runner.add(make_request("a", prompt(9), 1))
    assert trace(runner) == [["a:0-9*"]]
    runner.add(make_request("b", prompt(9), 1), make_request("c", prompt(8), 1))
    assert trace(runner) == [["b:8-9*", "c:4-8*"]]
    assert runner.scheduler.prefix_cache_queries == 26
    assert runner.scheduler.prefix_cache_hits == 12
    assert runner.finished["b", 0].request.num_cached_tokens == 8


def test_choices_share_one_prompt() -> None:
    runner = ScheduleRunner(max_num_batched_tokens=4)
    runner.add(make_request("a", prompt(6), 2, n=3))
    first, second = runner.step(), runner.step()
    assert shares(first) == ["a.0:0-4"]
    assert shares(second) == ["a.0:4-6*+1+2"]
    third = runner.step()
    assert shares(third) == ["a.0:6-7*", "a.1:6-7*", "a.2:6-7*"]
    assert len(third.block_copies) == 2, "the last sharer keeps the partial block"
    assert len({copy.destination for copy in third.block_copies}) == 2
    assert len({copy.source for copy in third.block_copies}) == 1
    check_texts(runner)
    assert sorted(runner.finished) == [("a", 0), ("a", 1), ("a", 2)]


def test_seats_are_for_choices() -> None:
    runner = ScheduleRunner(max_num_seqs=4)
    runner.add(
        make_request("a", prompt(4), 2, n=3),
        make_request("b", prompt(4, 3), 1, n=2),
        make_request("c", prompt(4, 4), 1),
    )
    assert shares(runner.step()) == ["a.0:0-4*+1+2"]
    assert runner.scheduler.occupancy()[2] == 2
    assert shares(runner.step()) == ["a.0:4-5*", "a.1:4-5*", "a.2:4-5*"]
    assert shares(runner.step()) == ["b.0:0-4*+1", "c:0-4*"]
    assert runner.scheduler.occupancy()[2] == 0


def test_full_reservation_waits_for_the_whole_future() -> None:
    runner = ScheduleRunner(num_blocks=6)
    # 4 prompt tokens and 9 outputs, the last of which is never computed: 12 tokens, 3 blocks.
    runner.add(*(make_request(name, prompt(4, i), 9) for i, name in enumerate("abc")))
    steps = trace(runner)
    assert steps[0] == ["a:0-4*", "b:0-4*"]
    assert steps[9][0] == "c:0-4*"
    assert runner.scheduler.num_preemptions == 0


def test_optimistic_admits_all_and_preempts_the_last() -> None:
    runner = ScheduleRunner(num_blocks=6, kv_reservation="optimistic", enable_prefix_caching=False)
    runner.add(*(make_request(name, prompt(4, i + 1), 9) for i, name in enumerate("abc")))
    outputs = []
    while runner.scheduler.has_work:
        outputs.append(runner.step())
    preempted = [[request.request_id for request in output.preempted] for output in outputs]
    # c needs one block in each of steps 0 and 1; in step 5 all need a third, and c gives way.
    assert preempted[:6] == [[], [], [], [], [], ["c"]]
    assert shares(outputs[4]) == ["a:7-8*", "b:7-8*", "c:7-8*"]
    assert shares(outputs[5]) == ["a:8-9*", "b:8-9*"]
    again = next(output for output in outputs[6:] if "c" in " ".join(shares(output)))
    assert shares(again) == ["c:0-9*"], "its five tokens are computed again, none is lost"
    check_texts(runner)


def test_displacing_by_priority() -> None:
    runner = ScheduleRunner(num_blocks=4, kv_reservation="optimistic", scheduling_policy="priority")
    runner.add(make_request("low", prompt(12), 4, priority=5))
    runner.step()
    runner.add(make_request("high", prompt(12, 3), 2, priority=1))
    output = runner.step()
    assert [request.request_id for request in output.preempted] == ["low"]
    assert shares(output) == ["high:0-12*"]
    runner.drain()
    check_texts(runner)


def test_nobody_is_displaced_without_need() -> None:
    runner = ScheduleRunner(kv_reservation="optimistic", scheduling_policy="priority")
    runner.add(make_request("low", prompt(8), 4, priority=5))
    runner.step()
    runner.add(make_request("high", prompt(8, 3), 2, priority=1))
    assert shares(runner.step()) == ["low:8-9*", "high:0-8*"]


def test_lowest_priority_gives_way_whoever_came_last() -> None:
    runner = ScheduleRunner(num_blocks=5, kv_reservation="optimistic", scheduling_policy="priority")
    runner.add(make_request("low", prompt(4), 9, priority=5))
    runner.step()
    runner.add(make_request("high", prompt(4, 3), 9, priority=1))
    preempted = []
    while runner.scheduler.has_work:
        preempted += [request.request_id for request in runner.step().preempted]
    assert preempted == ["low"]
    check_texts(runner)


def test_optimistic_admission_leaves_each_running_sequence_a_block() -> None:
    runner = ScheduleRunner(num_blocks=3, kv_reservation="optimistic")
    runner.add(make_request("a", prompt(4), 2), make_request("b", prompt(8, 3), 2))
    assert shares(runner.step()) == ["a:0-4*"]
    assert runner.scheduler.occupancy()[2] == 1


def test_preempted_prompt_is_cut_even_without_chunking() -> None:
    runner = ScheduleRunner(
        num_blocks=6,
        kv_reservation="optimistic",
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
        max_num_batched_tokens=10,
    )
    runner.add(make_request("a", prompt(8), 9), make_request("b", prompt(8, 3), 9))
    steps = trace(runner)
    assert runner.scheduler.num_preemptions == 1
    assert ["b:0-10"] in steps, "it has outgrown a step"
    check_texts(runner)


def test_equal_priority_does_not_displace() -> None:
    runner = ScheduleRunner(num_blocks=4, kv_reservation="optimistic", scheduling_policy="priority")
    runner.add(make_request("first", prompt(12), 4))
    runner.step()
    runner.add(make_request("second", prompt(12, 3), 2))
    assert shares(runner.step()) == ["first:12-13*"]
    assert runner.scheduler.occupancy()[2] == 1


def test_same_requests_same_trace() -> None:
    def run() -> list[list[str]]:
        runner = ScheduleRunner(num_blocks=12, kv_reservation="optimistic")
        for index in range(12):
            runner.add(make_request(f"r{index}", prompt(3 + index % 5, index % 3), 9, n=1))
        return trace(runner)

    assert run() == run()
