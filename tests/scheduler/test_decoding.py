"""Decodes that go by what is known ahead, against decodes that look at everything in each step."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from plain_decodes import decode_plainly
from schedule_runner import STOP, VOCAB_SIZE, ScheduleRunner, check_texts, make_request

from takt.errors import InvalidRequestError
from takt.scheduler.decode_batch import Decodes
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request
from takt.scheduler.slo import NO_SLO, NS_PER_MS, SLO


class Pair:
    """The same events for a runner as it is and for a plain one."""

    def __init__(self, rng: random.Random) -> None:
        steps = rng.randint(1, 3)
        is_pipeline = rng.random() < 0.25
        policy = rng.choice(["fcfs", "priority", "pace"])
        self.reservation = rng.choice(["full", "optimistic"])
        windows = rng.choice([(None,), (None, 6), (5,)])
        options: dict[str, Any] = {
            "num_blocks": rng.randint(12, 40),
            "windows": windows,
            "max_steps_in_flight": steps,
            "num_micro_batches": steps if is_pipeline else 1,
            "kv_reservation": self.reservation,
            "scheduling_policy": policy,
            "max_num_seqs": 6,
            "max_num_batched_tokens": rng.randint(6, 24),
        }
        if policy == "pace" and self.reservation == "full":
            options["slo_itl_p99_ms"] = rng.choice([12, 40]) / NS_PER_MS
        self.runners = [ScheduleRunner(**options) for _ in range(2)]
        decode_plainly(self.runners[1].scheduler, is_pipeline=is_pipeline and steps > 1)
        self.num_added = 0

    def add(self, rng: random.Random) -> None:
        max_tokens = rng.randint(0, 25)
        fields: dict[str, Any] = {
            "prompt": [rng.randint(1, 2) for _ in range(rng.randint(1, 25))],
            "max_tokens": max_tokens,
            "priority": rng.randint(0, 2),
            "salt": rng.choice(["", "s"]),
            "stops": rng.choice([(), (), (STOP,), tuple(range(VOCAB_SIZE))]),
            "n": rng.choice([1, 1, 1, 3]),
            "min_tokens": min(rng.randint(0, 3), max_tokens),
            "prompt_logprobs": rng.choice([None, None, 0]),
            "slo": SLO(None, rng.choice([None, 30])) if rng.random() < 0.3 else NO_SLO,
        }
        for runner in self.runners:
            request = make_request(f"r{self.num_added}", arrival_ns=runner.now_ns, **fields)
            with contextlib.suppress(InvalidRequestError):  # it is too large for the pool
                runner.add(request)
        self.num_added += 1

    def abort(self, rng: random.Random) -> None:
        name = f"r{rng.randrange(self.num_added)}"
        choice = rng.choice([None, 0, 1])
        for runner in self.runners:
            runner.abort(name, choice)

    def submit(self) -> None:
        first, second = (words(runner.submit()) for runner in self.runners)
        assert first == second

    def complete(self) -> None:
        first, second = ([end_words(e) for e in runner.complete()] for runner in self.runners)
        assert first == second

    @property
    def num_in_flight(self) -> int:
        return len(self.runners[0].in_flight)


def words(output: SchedulerOutput) -> tuple[Any, ...]:
    items = [
        (name(i.request), i.start, i.num_tokens, i.samples, [name(f) for f in i.forks])
        for i in output.scheduled
    ]
    return (
        output.step_id,
        items,
        output.num_decodes,
        output.num_decode_kv_tokens,
        output.num_prefill_tokens,
        [name(request) for request in output.preempted],
    )


def end_words(end: Any) -> tuple[Any, ...]:
    return name(end.request), end.finish_reason, end.stop_token_id, end.request.token_ids


def name(request: Request) -> tuple[str, int]:
    return request.request_id, request.choice


@pytest.mark.parametrize("seed", range(120))
def test_the_schedule_is_the_one_that_looking_at_every_sequence_gives(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(rng)
    most = pair.runners[0].max_steps_in_flight
    for _ in range(150):
        draw = rng.random()
        if draw < 0.12:
            pair.add(rng)
        elif draw < 0.14 and pair.num_added:
            pair.abort(rng)
        elif draw < 0.55 and pair.num_in_flight < most:
            pair.submit()
        elif pair.num_in_flight:
            pair.complete()
    for runner in pair.runners:
        runner.drain()
        check_texts(runner)
    ours, plain = (list(runner.finished) for runner in pair.runners)
    assert ours == plain


def test_a_batch_is_the_same_object_until_somebody_joins_or_leaves() -> None:
    runner = ScheduleRunner(max_num_batched_tokens=32)
    runner.add(make_request("a", [1, 1], 20), make_request("b", [2, 1], 6))
    runner.step()
    first, second = runner.step(), runner.step()
    assert first.batch is second.batch
    assert (first.batch_step + 1, first.batch.starts(first.batch_step)) == (
        second.batch_step,
        [2, 2],
    )
    runner.add(make_request("c", [1, 2], 20))
    assert runner.step().batch is first.batch, "c computes its prompt"
    assert [r.request_id for r in runner.step().batch.requests] == ["a", "b", "c"]
    runner.step()  # b ends
    assert [r.request_id for r in runner.step().batch.requests] == ["a", "c"]
    assert [r.request_id for r in first.batch.requests] == ["a", "b"]


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_up_for_a_sequence_is_known_ahead(seed: int) -> None:
    rng = random.Random(seed)
    block_size = 4
    decodes = Decodes(block_size)
    members: list[Request] = []
    for number in range(200):
        if rng.random() < 0.4:
            request = make_request(f"r{number}", [1] * rng.randint(1, 9), rng.randint(2, 30))
            request.order_key = (rng.randint(0, 5), number)
            request.num_computed_tokens = request.num_prompt_tokens
            request.max_computed_tokens = request.num_prompt_tokens + request.max_tokens - 1
            request.stop_token_ids = frozenset(rng.sample(range(4), 2))
            decodes.join(request)
            members.append(request)
        if members and rng.random() < 0.3:
            gone = members.pop(rng.randrange(len(members)))
            decodes.leave(gone)
            assert gone not in decodes
        members.sort(key=lambda r: r.order_key)
        step, batch = decodes.num_steps, decodes.batch()
        assert batch.requests == members
        assert batch.starts(step) == [r.num_computed_tokens for r in members]
        assert decodes.num_kv_tokens == sum(r.num_computed_tokens + 1 for r in members)
        assert set(decodes.at_border(step)) == {
            r for r in members if r.num_computed_tokens % block_size == 0
        }
        assert set(decodes.ending(step)) == {
            r for r in members if r.num_computed_tokens == r.max_computed_tokens - 1
        }
        assert decodes.stop_ids == frozenset().union(*[r.stop_token_ids for r in members])
        ending = [r for r in members if r in decodes.ending(step)]
        decodes.advance(number)
        decodes.leave_ended()
        members = [r for r in members if r not in ending]
    for request in members:
        decodes.leave(request)
    assert not any(decodes._borders)
    assert not decodes._endings
    assert not decodes._stop_sets
