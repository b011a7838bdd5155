"""Requests of all kinds, and what must hold once a core has served them."""

from __future__ import annotations

import random
from typing import Any

from core_driver import Collector, request
from fake_model import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    expected_tokens,
)

from takt.engine.core import EngineCore
from takt.engine.messages import AddRequest


def random_requests(seed: int, count: int, **sampling: Any) -> list[AddRequest]:
    """Mixed lengths; greedy and random, with and without penalties, biases and `min_tokens`."""
    rng = random.Random(seed)
    requests = []
    for index in range(count):
        options: dict[str, Any] = {
            "max_tokens": rng.randint(1, 40),
            "temperature": rng.choice([0.0, 0.7]),
            "seed": rng.getrandbits(64),
            **sampling,
        }
        if rng.random() < 0.3:
            options["frequency_penalty"] = 0.5
        if rng.random() < 0.3:
            options["min_tokens"] = rng.randint(1, options["max_tokens"])
            options["stop_token_ids"] = tuple(range(0, VOCAB_SIZE, 6))
        if rng.random() < 0.3:
            options["logit_bias"] = {rng.randrange(VOCAB_SIZE): 1.5, 9: -2.0}
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 120))]
        requests.append(request(f"r{index}", prompt, **options))
    return requests


def check_all(collector: Collector, requests: list[AddRequest], window: int | None = None) -> None:
    for each in requests:
        for choice in range(each.sampling.n):
            expected = expected_tokens(
                each.prompt_token_ids, each.sampling, choice=choice, window=window
            )
            collected = collector[each.request_id, choice]
            assert collected.token_ids == expected, (each.request_id, choice)
            stops = expected[-1] in {EOS_TOKEN_ID, *each.sampling.stop_token_ids}
            assert collected.finish_reason == ("stop" if stops else "length")
            assert collected.outputs[-1].stop_token_id == (expected[-1] if stops else None)


def blocks_in_use(collector: Collector) -> int:
    return collector.stats[-1].kv_blocks_used


def check_nothing_is_kept(core: EngineCore) -> None:
    """An engine that runs for months must not remember what has ended."""
    runner = core._runner
    assert not runner._seats.seat_of
    assert not runner._seats.counts
    assert not runner._seats.biases
    assert not runner._filler._num_scored
    assert runner.num_in_flight == 0
