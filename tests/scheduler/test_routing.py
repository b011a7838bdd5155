"""Routing: the replica that would be finished first, with what it has cached."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from takt.kvcache.prefix_directory import MAX_BLOCKS, PrefixDirectory
from takt.scheduler.replica_load import ReplicaLoad, Work
from takt.scheduler.routing import Router
from takt.scheduler.step_time import StepFeatures

BLOCK = 16
POOL_TOKENS = 4096
MS = 1_000_000


def load(**options: object) -> ReplicaLoad:
    values = {"max_num_seqs": 16, "max_num_batched_tokens": 128, "reserves_output": True}
    made = ReplicaLoad(**{**values, **options})  # type: ignore[arg-type]
    made.restart(POOL_TOKENS)
    return made


def router(size: int = 2, capacity: int = 256, **options: object) -> Router:
    directory = PrefixDirectory(BLOCK, [capacity] * size)
    return Router([load(**options) for _ in range(size)], directory)


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


def first(
    router: Router, token_ids: list[int], alive: list[int], *, max_tokens: int = 16, now: int = 0
) -> int:
    route = router.route(token_ids, Work(len(token_ids), 1, max_tokens), "", shares_prefix=True)
    return router.order(route, alive, now)[0]


def send(
    router: Router, name: str, replica: int, token_ids: list[int], *, max_tokens: int = 16
) -> None:
    work = Work(len(token_ids), 1, max_tokens)
    router.sent(name, router.route(token_ids, work, "", shares_prefix=True), replica, len(name))


def step(**fields: object) -> SimpleNamespace:
    values = {
        "schedule_start_ns": 0,
        "update_end_ns": 5 * MS,
        "num_decode_seqs": 1,
        "num_prefill_tokens": 0,
        "num_kv_tokens_read": 64,
        "num_qk_pairs": 64,
        "num_waiting": 0,
        "kv_fullest_share": 0.0,
        "load": None,
    }
    return SimpleNamespace(**{**values, **fields})


def test_equal_replicas_take_turns() -> None:
    routes = router()
    for turn in range(4):
        assert first(routes, prompt(20, turn), [0, 1]) == turn % 2
        send(routes, f"{turn:04}", turn % 2, prompt(20, turn))
        routes.loads[turn % 2].ended(f"{turn:04}", is_complete=False)
        # `last_sent_ns` alone tells them apart now.
        routes.loads[turn % 2].last_sent_ns = turn + 1


@pytest.mark.parametrize("seed", range(20))
def test_the_less_loaded_replica_is_taken(seed: int) -> None:
    """Whatever both have, one that has the same and more comes second."""
    rng = random.Random(seed)
    routes = router()
    for i in range(rng.randint(0, 12)):
        length, most = rng.randint(1, 150), rng.randint(1, 100)
        received = rng.randint(0, most)
        for replica in (0, 1):
            send(routes, f"{i}", replica, prompt(length, 100 + i), max_tokens=most)
            routes.loads[replica].received(f"{i}", received)
    busier = rng.randint(0, 1)
    send(routes, "more", busier, prompt(rng.randint(1, 150), 99), max_tokens=rng.randint(1, 100))
    if rng.random() < 0.5:
        routes.loads[busier].received("more", 1)
    assert first(routes, prompt(rng.randint(1, 300)), [0, 1]) == 1 - busier


def test_a_dead_replica_is_never_chosen() -> None:
    routes = router(3)
    send(routes, "a", 1, prompt(200))
    route = routes.route(prompt(200), Work(200, 1, 16), "", shares_prefix=True)
    assert set(routes.order(route, [0, 2], 0)) == {0, 2}
    assert routes.order(route, [], 0) == []


def test_a_cached_prefix_wins_exactly_while_it_saves_more_than_the_queue_costs() -> None:
    shared = prompt(640)
    routes = router()
    send(routes, "a", 0, shared)
    routes.loads[0].received("a", 16)
    routes.loads[0].ended("a", is_complete=True)
    assert first(routes, [*shared, 5], [0, 1]) == 0, "both are idle"
    send(routes, "b", 0, prompt(100, 1), max_tokens=1)
    assert first(routes, [*shared, 5], [0, 1]) == 0, "100 tokens wait, 640 are saved"
    for i in range(8):
        send(routes, f"c{i}", 0, prompt(300, 2 + i), max_tokens=1)
    assert first(routes, [*shared, 5], [0, 1]) == 1, "2,500 tokens wait"


def test_where_no_prefix_is_shared_none_counts() -> None:
    routes = router()
    send(routes, "a", 0, prompt(640))
    work = Work(640, 1, 16)
    scored = routes.route(prompt(640), work, "", shares_prefix=False)
    salted = routes.route(prompt(640), work, "someone else's", shares_prefix=True)
    for route in (scored, salted):
        assert routes.num_cached_tokens(0, route) == 0


def test_a_new_engine_has_nothing() -> None:
    routes = router()
    send(routes, "a", 0, prompt(640))
    route = routes.route(prompt(640), Work(640, 1, 16), "", shares_prefix=True)
    assert routes.num_cached_tokens(0, route) == 624, "the last block is computed in any case"
    routes.restart(0, POOL_TOKENS, 256)
    assert routes.num_cached_tokens(0, route) == 0
    assert routes.loads[0].num_requests == 0


def test_the_directory_is_bounded_and_forgets_the_least_recently_used() -> None:
    directory = PrefixDirectory(BLOCK, [8])
    old, new = (directory.names(prompt(6 * BLOCK + 1, seed)) for seed in (1, 2))
    directory.sent(0, old)
    directory.sent(0, new)
    assert directory.num_cached_tokens(0, new) == 6 * BLOCK
    assert directory.num_cached_tokens(0, old) == 2 * BLOCK, "the ends of prompts go first"
    assert len(directory.names(prompt(10_000))) == MAX_BLOCKS
    assert directory.names([1]) == directory.names([]) == []


def test_a_full_replica_is_worse_than_one_with_room() -> None:
    routes = router()
    for i in range(6):
        send(routes, f"{i}", 0, prompt(600, i), max_tokens=60)
        routes.loads[0].received(f"{i}", 1)
    assert routes.loads[0].memory > 0.85
    # As many sequences, and a longer prompt to compute first, but room for the request.
    for i in range(6):
        send(routes, f"{i}", 1, prompt(60, i), max_tokens=60)
        routes.loads[1].received(f"{i}", 1)
    send(routes, "prompt", 1, prompt(120, 9), max_tokens=1)
    assert first(routes, prompt(500, 10), [0, 1], max_tokens=60) == 1


def test_requests_that_have_not_begun_are_a_queue_too() -> None:
    routes = router(max_num_seqs=2)
    taken = []
    for i in range(12):
        taken.append(first(routes, prompt(20, i), [0, 1]))
        send(routes, f"{i}", taken[-1], prompt(20, i))
    assert sorted(taken) == [0] * 6 + [1] * 6


def test_a_slow_replica_gets_less_until_it_is_long_ago() -> None:
    routes = router()
    for i in range(50):
        for replica, ms in ((0, 40), (1, 4)):
            begin = i * 100 * MS
            routes.loads[replica].step(step(schedule_start_ns=begin, update_end_ns=begin + ms * MS))
    now = 50 * 100 * MS
    slow, fast = (one.model.predict_ns(StepFeatures(1, 0, 64, 64)) for one in routes.loads)
    assert slow > 5 * fast
    for i in range(2):
        send(routes, f"{i}", 1, prompt(20, i))
    assert first(routes, prompt(20, 5), [0, 1], now=now) == 1
    assert first(routes, prompt(20, 5), [0, 1], now=now + 60_000 * MS) == 0


@pytest.mark.parametrize("seed", range(10))
def test_sums_are_those_of_the_requests_that_are_there(seed: int) -> None:
    rng = random.Random(seed)
    one = load()
    alive: dict[str, tuple[Work, int]] = {}
    for i in range(300):
        if alive and rng.random() < 0.45:
            name = rng.choice(list(alive))
            del alive[name]
            one.ended(name, is_complete=rng.random() < 0.5)
        elif alive and rng.random() < 0.5:
            name = rng.choice(list(alive))
            work, received = alive[name]
            new = rng.randint(0, work.num_seqs * work.max_tokens - received)
            one.received(name, new)
            alive[name] = (work, received + new)
        else:
            work = Work(rng.randint(1, 50), rng.randint(1, 3), rng.randint(1, 9))
            one.sent(f"{i}", work, rng.choice([0, 16]), i)
            alive[f"{i}"] = (work, 0)
    begun = [(w, n) for w, n in alive.values() if n]
    assert one._seqs == sum(w.num_seqs for w, _ in begun)
    assert one._kv_tokens == sum(w.num_seqs * w.num_prompt_tokens + n for w, n in begun)
    assert one._left_tokens == sum(w.num_seqs * w.max_tokens - n for w, n in begun)
    assert one._prompt_seqs == sum(w.num_seqs for w, n in alive.values() if not n)
    assert one._final_tokens == sum(w.num_final_tokens for w, _ in alive.values())
    for name in list(alive):
        one.ended(name, is_complete=True)
    empty = load()
    for field in ("_prompt_tokens", "_prompt_seqs", "_prompt_kv", "_seqs", "_final_tokens"):
        assert getattr(one, field) == getattr(empty, field) == 0
