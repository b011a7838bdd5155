"""The engine core with the real scheduler, on a model that shows any mix-up."""

from __future__ import annotations

import gc
import random
from typing import Any

import msgspec
import pytest
from core_checks import blocks_in_use, check_all, check_nothing_is_kept, random_requests
from core_driver import Collector, make_core, request, run_all
from fake_model import (
    EOS_TOKEN_ID,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    WINDOW,
    expected_tokens,
    fake_model,
    logprob_of,
)

from takt.clock import ManualClock
from takt.engine.messages import IN_OUTPUTS, AddRequest, TokenLogprob
from takt.errors import EngineDeadError
from takt.types.sampling_params import SamplingParams


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
@pytest.mark.parametrize("max_num_batched_tokens", [64, 200])
def test_each_of_many_mixed_requests_gets_its_own_tokens(
    window: int | None, steps_in_flight: int, max_num_batched_tokens: int
) -> None:
    model = fake_model(window=window, max_steps_in_flight=steps_in_flight)
    core = make_core(model, max_num_batched_tokens=max_num_batched_tokens)
    requests = random_requests(steps_in_flight, 64)
    collector = run_all(core, requests)
    check_all(collector, requests, window)
    assert blocks_in_use(collector) == 0
    check_nothing_is_kept(core)


def test_steps_of_programs_that_are_not_native_have_the_same_tokens() -> None:
    requests = random_requests(1, 64)
    core = make_core(fake_model(window=WINDOW, native=False), max_num_batched_tokens=200)
    check_all(run_all(core, requests), requests, WINDOW)
    check_nothing_is_kept(core)


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_choices_fork_after_the_prompt_and_draw_for_themselves(steps_in_flight: int) -> None:
    core = make_core(fake_model(window=WINDOW, max_steps_in_flight=steps_in_flight))
    prompt = list(range(100, 137))
    requests = [
        request(f"r{n}", prompt, n=n, temperature=1.0, seed=5, max_tokens=20, ignore_eos=True)
        for n in (1, 2, 5)
    ]
    collector = run_all(core, requests)
    check_all(collector, requests, WINDOW)
    assert collector["r1"].token_ids == collector["r5"].token_ids
    assert len({tuple(collector["r5", choice].token_ids) for choice in range(5)}) == 5
    assert collector["r5", 3].num_cached_tokens == collector["r5"].num_cached_tokens
    assert blocks_in_use(collector) == 0


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("window", [None, WINDOW])
def test_preemption_changes_no_token(steps_in_flight: int, window: int | None) -> None:
    model = fake_model(window=window, max_steps_in_flight=steps_in_flight)
    blocks = 40
    core = make_core(
        model,
        kv_reservation="optimistic",
        kv_cache_memory_bytes=blocks * (256 if window is None else 512),
        max_num_seqs=8,
        max_model_len=160,
    )
    requests = random_requests(11, 30, max_tokens=90, ignore_eos=True)
    requests = [
        msgspec.structs.replace(each, prompt_token_ids=each.prompt_token_ids[:50])
        for each in requests
    ]
    collector = run_all(core, requests)
    check_all(collector, requests, window)
    assert sum(stats.num_preempted for stats in collector.stats) > 0
    assert blocks_in_use(collector) == 0


def test_a_prefix_hit_changes_no_token_and_is_reported() -> None:
    core = make_core()
    prompt = list(range(500, 600))
    cold = run_all(core, [request("cold", prompt, max_tokens=8)])
    warm = run_all(core, [request("warm", prompt, max_tokens=8)])
    assert warm["warm"].token_ids == cold["cold"].token_ids
    assert cold["cold"].num_cached_tokens == 0
    assert warm["warm"].num_cached_tokens == 96
    assert sum(stats.prefix_cache_hits for stats in warm.stats) == 96
    assert sum(stats.prefix_cache_queries for stats in warm.stats) == 100


def test_a_sequence_that_continues_where_another_ended_is_not_taken_for_it() -> None:
    core = make_core(max_num_seqs=1)
    prompt = list(range(700, 733))
    cached = request("cached", prompt, max_tokens=1)
    run_all(core, [cached])
    # `first` ends by decoding position 31; `second` has 32 cached tokens and begins at 32.
    first = request("first", list(range(31)), max_tokens=2, ignore_eos=True)
    second = request("second", prompt, max_tokens=3, temperature=1.0, seed=4, ignore_eos=True)
    collector = run_all(core, [first, second])
    assert collector["second"].num_cached_tokens == 32
    check_all(collector, [first, second])


def test_logprobs_are_those_of_the_tokens_they_come_with() -> None:
    core = make_core()
    requests = [
        request("none", [1, 2], max_tokens=4, ignore_eos=True),
        request("chosen", [3, 4], max_tokens=4, logprobs=0, ignore_eos=True),
        request("top", [5, 6], max_tokens=4, logprobs=3, ignore_eos=True),
    ]
    collector = run_all(core, requests)
    assert collector["none"].logprobs == []
    for name, num_top in (("chosen", 0), ("top", 3)):
        collected = collector[name]
        assert collected.logprobs == [
            TokenLogprob(
                token,
                pytest.approx(logprob_of(token), rel=1e-6),
                token % 9 + 1,
                [((token + i) % VOCAB_SIZE, -float(i)) for i in range(num_top)],
            )
            for token in collected.token_ids
        ]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 150])
def test_prompt_logprobs_have_one_entry_per_prompt_token(
    length: int, max_tokens: int, steps_in_flight: int
) -> None:
    core = make_core(fake_model(max_steps_in_flight=steps_in_flight))
    prompt = [(i * 37 + 5) % VOCAB_SIZE for i in range(length)]
    neighbours = random_requests(3, 6)
    scored = request("s", prompt, max_tokens=max_tokens, prompt_logprobs=2, ignore_eos=True)
    # Twice, so that the second finds the prompt in the prefix cache.
    for _ in range(2):
        collector = run_all(core, [*neighbours, scored])
        entries = collector["s"].prompt_logprobs
        assert entries[0] is None
        assert [entry.token_id for entry in entries[1:]] == prompt[1:]
        assert [len(entry.top) for entry in entries[1:]] == [2] * (length - 1)
        assert collector["s"].token_ids == (
            expected_tokens(prompt, scored.sampling) if max_tokens else []
        )
        assert collector["s"].finish_reason == "length"
        assert collector["s"].num_cached_tokens == 0
        check_all(collector, neighbours)
    check_nothing_is_kept(core)


def test_a_scored_row_leaves_nothing_to_the_sampled_row_after_it() -> None:
    core = make_core(max_num_seqs=1, max_num_batched_tokens=1)
    asked = request("a", [1, 2], max_tokens=2, prompt_logprobs=0, logprobs=3, ignore_eos=True)
    collected = run_all(core, [asked])["a"]
    assert [e and len(e.top) for e in collected.prompt_logprobs] == [None, 0]
    for entry in collected.logprobs:
        assert [token for token, _ in entry.top] == [entry.token_id + i for i in range(3)]


def test_prompt_logprobs_come_once_though_the_request_is_preempted() -> None:
    core = make_core(kv_reservation="optimistic", kv_cache_memory_bytes=24 * 256, max_model_len=160)
    requests = [
        request(f"r{i}", [i + 1] * 40, max_tokens=100, prompt_logprobs=0, ignore_eos=True, n=1)
        for i in range(6)
    ]
    collector = run_all(core, requests)
    check_all(collector, requests)
    assert sum(stats.num_preempted for stats in collector.stats) > 0
    for each in requests:
        entries = collector[each.request_id].prompt_logprobs
        assert [e and e.token_id for e in entries] == [None, *each.prompt_token_ids[1:]]


def test_min_tokens_forbids_every_stop_id_until_then() -> None:
    stops = tuple(range(0, VOCAB_SIZE, 2))
    asked = request("a", [1, 2, 3], max_tokens=30, min_tokens=12, stop_token_ids=stops[:1000])
    collector = run_all(make_core(), [asked])
    tokens = collector["a"].token_ids
    assert len(tokens) >= 12
    assert not {EOS_TOKEN_ID, *stops[:1000]} & set(tokens[:12])
    check_all(collector, [asked])


@pytest.mark.parametrize(
    ("prompt", "sampling", "param", "sentence"),
    [
        ([], {}, "prompt", "no tokens"),
        ([VOCAB_SIZE], {}, "prompt", str(VOCAB_SIZE)),
        ([1, -1, 2], {}, "prompt", "-1"),
        ([1] * MAX_MODEL_LEN, {}, "prompt", str(MAX_MODEL_LEN)),
        ([1] * 200, {"max_tokens": 57}, "max_tokens", "57"),
        ([1], {"logprobs": 21}, "logprobs", "21"),
        ([1], {"prompt_logprobs": 21}, "prompt_logprobs", "20"),
        ([1], {"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias", str(VOCAB_SIZE)),
        ([1], {"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias", "1025"),
        ([1], {"stop_token_ids": (-5,)}, "stop_token_ids", "-5"),
        ([1], {"n": 65}, "n", "65"),
        ([1] * 250, {"min_tokens": 7}, "min_tokens", "7"),
    ],
)
def test_what_can_never_be_served_is_refused_by_name(
    prompt: list[int], sampling: dict[str, Any], param: str, sentence: str
) -> None:
    core = make_core()
    good = request("good", [1, 2, 3], max_tokens=5)
    collector = run_all(core, [AddRequest("bad", prompt, SamplingParams(**sampling)), good])
    (refusal,) = collector["bad"].outputs
    assert refusal.finish_reason == "error"
    assert refusal.error_param == param
    assert sentence in (refusal.error or "")
    check_all(collector, [good])


def test_without_max_tokens_the_default_or_the_context_limits() -> None:
    core = make_core(default_max_tokens=30)
    collector = run_all(
        core,
        [
            request("short", [1, 2], ignore_eos=True),
            request("long", [1] * (MAX_MODEL_LEN - 4), ignore_eos=True),
        ],
    )
    assert len(collector["short"].token_ids) == 30
    assert len(collector["long"].token_ids) == 4


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_random_aborts_return_every_block(steps_in_flight: int) -> None:
    rng = random.Random(steps_in_flight)
    model = fake_model(window=WINDOW, max_steps_in_flight=steps_in_flight)
    core = make_core(model, max_num_seqs=16)
    collector = Collector()
    requests = random_requests(5, 300)
    waiting = list(requests)
    aborted = 0
    while waiting or core.has_work:
        for _ in range(rng.randint(0, 4)):
            if waiting:
                core.add(waiting.pop())
        if rng.random() < 0.7:
            victim = rng.choice(requests).request_id
            core.abort([victim])
            aborted += 1
        if core.has_work:
            collector.step(core)
    assert aborted > 50
    for each in requests:
        collected = collector[each.request_id]
        expected = expected_tokens(each.prompt_token_ids, each.sampling, window=WINDOW)
        if collected.finish_reason == "abort":
            assert collected.token_ids == expected[: len(collected.token_ids)]
        else:
            assert collected.token_ids == expected
    assert {c.finish_reason for c in collector.choices.values()} == {"abort", "stop", "length"}
    final = run_all(core, [request("last", [1], max_tokens=1)])
    assert blocks_in_use(final) == 0
    check_nothing_is_kept(core)


@pytest.mark.parametrize("begun", [0, 1, 4])
def test_one_choice_is_aborted_and_the_others_go_on(begun: int) -> None:
    core = make_core()
    asked = request("a", [1] * 100, n=3, temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    collector = Collector()
    core.add(asked)
    for _ in range(begun):
        collector.step(core)
    core.abort(["a"], 0)
    collector.run(core)
    assert collector["a", 0].finish_reason == "abort"
    for choice in (1, 2):
        expected = expected_tokens(asked.prompt_token_ids, asked.sampling, choice=choice)
        assert collector["a", choice].token_ids == expected


def test_the_record_of_a_step_is_complete() -> None:
    clock = ManualClock(1_000)
    core = make_core(fake_model(before_step=lambda step: clock.advance(500)), clock)
    core.add(request("a", [1] * 20, max_tokens=3, ignore_eos=True))
    clock.advance(70)
    collector = Collector()
    collector.run(core)
    first, second, third = collector.stats
    assert [s.step_id for s in collector.stats] == [0, 1, 2]
    assert first.queue_times_ns == [70]
    assert second.queue_times_ns == []
    assert first.run_end_ns - first.run_start_ns == 500
    assert (first.num_prefill_tokens, first.num_decode_seqs) == (20, 0)
    assert (second.num_prefill_tokens, second.num_decode_seqs) == (0, 1)
    assert (first.num_kv_tokens_read, first.num_qk_pairs) == (20, 20 * 21 // 2)
    assert (second.num_kv_tokens_read, second.num_qk_pairs) == (21, 21)
    assert (first.num_running, first.num_waiting, third.num_running) == (1, 0, 0)
    assert first.kv_blocks_used == 2
    assert third.kv_blocks_used == 0
    assert third.kv_blocks_total == core.sizes.num_blocks[0]


def test_a_seed_is_drawn_for_those_that_give_none() -> None:
    core = make_core()
    asked = [
        request(f"r{i}", [1, 2, 3], temperature=1.0, max_tokens=6, ignore_eos=True)
        for i in range(3)
    ]
    collector = run_all(core, asked)
    assert len({tuple(collector[each.request_id].token_ids) for each in asked}) == 3


def test_plain_steps_bring_one_array_of_tokens_and_leave_no_cycles_behind() -> None:
    core = make_core()
    for name in ("a", "b", "c"):
        core.add(request(name, [1, 2, 3], max_tokens=60, ignore_eos=True))
    while not (result := core.step()).token_ids:
        pass
    batch = result.batch
    gc.collect()
    gc.disable()
    try:
        for _ in range(40):
            result = core.step()
            assert result.batch is batch
            assert result.outputs == []
            assert len(result.token_ids) == 3
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_token_with_more_to_say_is_an_output_and_the_others_stay_plain() -> None:
    core = make_core()
    core.add(request("plain", [1, 2], max_tokens=9, ignore_eos=True))
    core.add(request("scored", [3, 4], max_tokens=9, logprobs=1, ignore_eos=True))
    core.add(request("short", [5, 6], max_tokens=3, ignore_eos=True))
    core.step()
    first, second = core.step(), core.step()
    names = [r.request_id for r in first.batch.requests] if first.batch else []
    assert names == ["plain", "scored", "short"]
    assert [token == IN_OUTPUTS for token in first.token_ids] == [False, True, False]
    assert [output.request_id for output in first.outputs] == ["scored"]
    assert [token == IN_OUTPUTS for token in second.token_ids] == [False, True, True]
    assert [(o.request_id, o.finish_reason) for o in second.outputs] == [
        ("scored", None),
        ("short", "length"),
    ]
    assert [len(output.token_ids) for output in first.all_outputs()] == [1, 1, 1]


def test_a_core_whose_step_failed_can_be_closed() -> None:
    def fail(step: object) -> None:
        raise EngineDeadError("the threads are gone")

    core = make_core(fake_model(before_step=fail))
    core.add(request("a", [1, 2], max_tokens=4))
    with pytest.raises(EngineDeadError, match="threads are gone"):
        core.step()
    core.close()
