"""Pace on a fake model and a virtual clock, with steps whose length is known."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pace_runner import MS, PaceRunner, features_of, words

from takt.errors import InvalidRequestError
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.pace import HEADROOM, PATIENCE_STEPS
from takt.scheduler.slo import NO_SLO, SLO
from takt.scheduler.step_time import StepFeatures


def test_golden_trace_of_a_long_prompt_beside_a_stream() -> None:
    # 0.95 x 6 ms is 5.7 ms; 1.1 x (2 + 0.1 n) stays within it up to n = 31 tokens.
    runner = PaceRunner(SLO.from_ms(6, 1000))
    runner.add("a", 10, 5)
    runner.step()
    runner.add("long", 100, 2)
    runner.run()
    assert runner.log == [
        "a:0+10*",
        "a:10+1* long:0+30",
        "a:11+1* long:30+30",
        "a:12+1* long:60+30",
        "a:13+1* long:90+10*",
        "long:100+1*",
    ]


def test_without_a_stream_to_disturb_a_step_is_as_large_as_may_be() -> None:
    runner = PaceRunner(SLO.from_ms(6, 1000))
    runner.add("a", 300, 1)
    runner.run()
    assert runner.log == ["a:0+256", "a:256+44*"]


def test_a_short_prompt_passes_a_long_one_that_is_under_way() -> None:
    runner = PaceRunner(SLO.from_ms(6, 100))
    runner.add("a", 10, 200)
    runner.step()
    runner.add("long", 2000, 1)
    runner.step()
    runner.add("short", 20, 1)
    runner.step()
    assert runner.log[-1] == "a:11+1* short:0+20* long:30+10"


def test_the_time_since_the_last_token_is_taken_from_the_budget() -> None:
    runner = PaceRunner(SLO.from_ms(6, 1000))
    runner.add("a", 10, 5)
    runner.step()
    runner.add("b", 100, 1)
    runner.now_ns += MS  # 1.1 x (2 + 0.1 n) <= 4.7
    assert words(runner.step()) == "a:10+1* b:0+21"


def test_the_tightest_running_request_sets_the_budget() -> None:
    runner = PaceRunner(SLO.from_ms(50, 1000))
    runner.add("a", 10, 3, slo=SLO.from_ms(6, None))
    runner.step()
    runner.add("long", 500, 1)
    assert words(runner.step()) == "a:10+1* long:0+30"
    runner.step()  # the last of a
    assert words(runner.step()) == "long:60+256"


def test_priority_shifts_deadlines_and_does_not_starve_anybody() -> None:
    runner = PaceRunner(SLO.from_ms(6, 50), max_num_seqs=2)
    runner.add("busy", 10, 30)
    runner.step()
    runner.add("low", 40, 1, priority=3)
    for i in range(60):
        runner.add(f"high-{i}", 40, 1)
        runner.step()
    runner.run()
    order = sorted(runner.first_token_ns, key=runner.first_token_ns.__getitem__)
    assert 5 < order.index("low") < 55


def test_a_request_that_is_late_stands_behind_those_that_can_be_in_time() -> None:
    runner = PaceRunner(SLO.from_ms(6, 10), max_num_seqs=16)
    runner.add("stream", 10, 400)
    runner.step()
    runner.add("late", 30, 1)
    runner.now_ns += 8 * MS
    runner.add("fresh", 30, 1)
    runner.now_ns += 3 * MS
    runner.step()
    runner.run()
    assert runner.first_token_ns["fresh"] < runner.first_token_ns["late"]


def largest_batch(runner: PaceRunner) -> int:
    """Of sixteen requests that come at once."""
    for i in range(16):
        runner.add(f"r{i}", 4, 40)
    most = 0
    while runner.scheduler.has_work:
        runner.step()
        most = max(most, runner.scheduler.num_running)
    return most


def test_a_batch_does_not_grow_beyond_what_its_decodes_can_hold() -> None:
    # 1.1 x (2 + 0.1 (n + 4)) <= 0.95 x 4 ms up to 10 sequences.
    runner = PaceRunner(SLO.from_ms(4, 1000))
    assert largest_batch(runner) == 10
    assert max(runner.gaps_ns) <= 4 * MS


def test_where_prompts_never_fit_beside_a_decode_a_batch_grows_all_the_same() -> None:
    runner = PaceRunner(SLO.from_ms(4, 1000))
    plain = runner.machine.predict_ns

    def with_a_price_for_prompts(features: StepFeatures) -> float:
        return plain(features) + (5 * MS if features.num_prefill_tokens else 0)

    runner.machine.predict_ns = with_a_price_for_prompts  # type: ignore[method-assign]
    # 1.1 x (2 + 0.1 n) <= 0.95 x 4 ms.
    assert largest_batch(runner) == 14


def test_prompts_progress_even_where_decodes_take_all_the_time() -> None:
    runner = PaceRunner(SLO.from_ms(6, 1000))
    for i in range(8):
        runner.add(f"r{i}", 4, 1200)
    runner.step()
    runner.machine.p99_ns = lambda f: 7.0 * MS  # type: ignore[method-assign]
    runner.machine.late_share = lambda f, limit: 0.0  # type: ignore[method-assign]
    runner.add("late", 16, 1)
    runner.scheduler._may_join = lambda *_: True  # type: ignore[method-assign]
    runner.run()
    assert "late" in runner.first_token_ns
    with_prompt = [i for i, line in enumerate(runner.log[1:]) if "late:" in line]
    assert all(b - a >= PATIENCE_STEPS for a, b in itertools.pairwise(with_prompt))


def runner_that_holds(**fields: Any) -> PaceRunner:
    """Streams are to wait, whatever prompts there are."""
    runner = PaceRunner(SLO.from_ms(6, 1000), **fields)
    runner.scheduler._urgency.holds = lambda *_: True  # type: ignore[method-assign]
    return runner


def test_prompts_that_are_held_lack_their_last_token() -> None:
    runner = runner_that_holds()
    runner.add("a", 40, 2)
    runner.add("b", 40, 2)
    assert words(runner.step()) == "a:0+39 b:0+39"
    assert words(runner.step()) == "a:39+1* b:39+1*"


def test_a_prompt_that_has_to_go_whole_is_not_held() -> None:
    runner = runner_that_holds(enable_chunked_prefill=False)
    runner.add("a", 40, 2)
    assert words(runner.step()) == "a:0+40*"


def test_a_request_that_is_only_scored_begins_no_stream_and_is_not_held() -> None:
    runner = runner_that_holds()
    runner.add("scored", 40, 0)
    runner.add("a", 40, 2)
    assert words(runner.step()) == "scored:0+40 a:0+39"


def test_what_prompts_cost_is_learned_from_steps_for_which_they_waited() -> None:
    runner, seen = PaceRunner(SLO.from_ms(6, 1000), max_steps_in_flight=2), []
    runner.scheduler._urgency.observe = lambda f, ns: seen.append(f)  # type: ignore[method-assign]
    runner.add("a", 40, 4)
    outputs = [runner.scheduler.schedule(0), runner.scheduler.schedule(0)]
    assert [words(output) for output in outputs] == ["a:0+40*", "a:40+1*"]
    for i, output in enumerate(outputs):
        runner.scheduler.update(output, [2] * output.num_sampled)
        runner.scheduler.observe(features_of(output), MS, (i + 1) * MS)
    assert seen == [features_of(outputs[0])], "nothing waited for the second"


TIGHT = SLO.from_ms(2.6, None)
"""A sequence alone keeps it, 1.1 x 2.1 ms, and two don't."""


@pytest.mark.parametrize("server_itl_ms", [12, None])
def test_a_running_tight_target_holds_nobody_off_for_longer_than_its_first_token_may_take(
    server_itl_ms: float | None,
) -> None:
    runner = PaceRunner(SLO.from_ms(server_itl_ms, 100))
    runner.add("tight", 10, 2000, slo=TIGHT)
    runner.step()
    names = [f"other-{i}" for i in range(4)]
    for name in names:
        runner.add(name, 60, 20)
    while not all(name in runner.first_token_ns for name in names):
        runner.step()
    assert 100 * MS < max(runner.first_token_ns[name] for name in names) < 160 * MS
    runner.run()


def test_who_promises_to_be_in_time_keeps_a_running_tight_target() -> None:
    runner = PaceRunner(SLO.from_ms(12, 100), refuses=True)
    runner.add("tight", 10, 400, slo=TIGHT)
    runner.step()
    runner.add("other", 60, 1)
    runner.run()
    assert runner.first_token_ns["other"] > runner._last_ns["tight"]
    assert max(runner.gaps_ns) <= 2.6 * MS


def test_who_waits_for_a_tight_target_of_its_own_is_passed() -> None:
    runner = PaceRunner(SLO.from_ms(12, 100))
    runner.add("stream", 10, 400)
    runner.step()
    for i in range(3):
        runner.add(f"tight-{i}", 10, 5, slo=TIGHT)
    runner.add("other", 10, 5)
    assert words(runner.step()) == "stream:10+1* other:0+10*"
    while len(runner.first_token_ns) < 5:
        runner.step()
    # Overdue, they make do with the server's target.
    assert 100 * MS < runner.first_token_ns["tight-0"] < 120 * MS
    runner.run()


def test_itl_is_not_promised_where_it_may_be_preempted() -> None:
    runner = PaceRunner(NO_SLO, reserves_output=False)
    with pytest.raises(InvalidRequestError, match="kv-reservation full"):
        runner.add("a", 10, 4, slo=SLO.from_ms(20, None))


def test_the_victim_is_whose_computing_costs_least() -> None:
    runner = PaceRunner(NO_SLO, reserves_output=False, num_blocks=40, max_num_seqs=3)
    victims: list[str] = []
    runner.add("long", 80, 60)
    runner.add("short", 20, 60)
    runner.add("middle", 50, 60)
    while runner.scheduler.has_work:
        victims += [r.request_id for r in runner.step().preempted]
    # "short" has its token of this step already; of the other two "middle" is cheaper.
    assert victims[0] == "middle"


arrivals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 400), st.integers(1, 60), st.integers(-2, 2)),
    min_size=1,
    max_size=25,
)


def serve(load: Sequence[tuple[int, int, int, int]], slowness: float = 1.0) -> PaceRunner:
    """Runs (steps to wait before it comes, prompt, output, priority) of each request."""
    runner = PaceRunner(SLO.from_ms(6, 200), slowness=slowness)
    for index, (wait, num_prompt, num_output, priority) in enumerate(load):
        for _ in range(wait):
            check_budget(runner, runner.step())
        runner.add(f"{index}", num_prompt, num_output, priority=priority)
    for _ in range(20_000):
        if not runner.scheduler.has_work:
            return runner
        check_budget(runner, runner.step())
    raise AssertionError("somebody starves")


def check_budget(runner: PaceRunner, output: SchedulerOutput) -> None:
    """A step that takes of a prompt ends, by the model's own P99, before the tightest deadline."""
    bounds = runner.scheduler.last_bounds
    if not bounds or output.num_prefill_tokens == 0:
        return
    (limit_ns, *_), *_ = bounds
    num_decodes = output.total_num_scheduled_tokens - output.num_prefill_tokens
    features = StepFeatures(num_decodes, output.num_prefill_tokens, 0, 0)
    assert num_decodes > 0
    assert limit_ns <= HEADROOM * 6 * MS + 1
    assert runner.machine.p99_ns(features) <= limit_ns


@settings(max_examples=40, deadline=None)
@given(load=arrivals, slowness=st.sampled_from([0.5, 1.0, 1.09]))
def test_no_step_exceeds_its_budget_and_nobody_starves_or_is_preempted(
    load: list[tuple[int, int, int, int]], slowness: float
) -> None:
    runner = serve(load, slowness)
    assert len(runner.first_token_ns) == len(load)
    assert runner.scheduler.num_preemptions == 0
    assert all(gap <= 6 * MS for gap in runner.gaps_ns)


def test_equal_arrivals_make_equal_steps() -> None:
    rng = random.Random(5)
    load = [
        (rng.randrange(4), rng.randrange(1, 300), rng.randrange(1, 40), rng.randrange(-1, 2))
        for _ in range(60)
    ]
    assert serve(load).log == serve(load).log
