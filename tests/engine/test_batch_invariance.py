"""A request's tokens and logprobs are the same bits whatever runs beside it, and however."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from takt import LLM, SamplingParams
from takt.completion import Completion
from takt.types.sampling_params import SamplingParams as Params

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
NUM_REQUESTS = 64
SOME = slice(None, None, 3)
"""Of each kind, for the engines that only run the same in another way."""
POOL_BYTES = 128 << 20
VOCAB_SIZE = 49_152

Bits = list[tuple[list[int], list[Any], list[Any]]]


def make_llm(**options: Any) -> LLM:
    return LLM(
        MODEL,
        **{
            "kv_cache_memory_bytes": POOL_BYTES,
            "max_model_len": 1024,
            "max_num_seqs": NUM_REQUESTS,
            "max_num_batched_tokens": 192,
            "enable_prefix_caching": False,
            **options,
        },
    )


def bits(completions: Sequence[Completion]) -> Bits:
    """All that a client could tell apart."""
    return [
        (output.token_ids, output.logprobs or [], completion.prompt_logprobs or [])
        for completion in completions
        for output in completion.outputs
    ]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """1 to 48 tokens; every eighth longer than a step."""
    rng = random.Random(7)
    lengths = [rng.randint(200, 220) if i % 8 == 0 else rng.randint(1, 48) for i in range(64)]
    return [[rng.randrange(20, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def params() -> list[Params]:
    """Greedy and random, with penalties, with choices, scored prompts among them."""
    rng = random.Random(8)
    result = []
    for index in range(NUM_REQUESTS):
        options: dict[str, Any] = {
            "temperature": 0.0 if index % 3 == 0 else 0.8,
            "top_p": 1.0 if index % 2 else 0.9,
            "seed": rng.getrandbits(64),
            "max_tokens": rng.randint(3, 9),
            "logprobs": 2,
            "ignore_eos": True,
        }
        if index % 5 == 0:
            options.update(presence_penalty=0.5, repetition_penalty=1.3)
        if index % 16 == 3:
            options.update(prompt_logprobs=1)
        result.append(SamplingParams(**options))
    return result


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm() as engine:
        yield engine


@pytest.fixture(scope="module")
def solo(llm: LLM, prompts: list[list[int]], params: list[Params]) -> Bits:
    """Each request alone."""
    return [bits(llm.generate([p], s))[0] for p, s in zip(prompts, params, strict=True)]


def test_each_of_64_concurrent_requests_equals_its_solo_run(
    llm: LLM, prompts: list[list[int]], params: list[Params], solo: Bits
) -> None:
    assert bits(llm.generate(prompts, params)) == solo


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"max_num_batched_tokens": 4096}, id="whole-instead-of-chunked"),
        pytest.param({"max_num_batched_tokens": 67}, id="small-chunks"),
        pytest.param({"enforce_eager": True}, id="eager-instead-of-captured"),
        pytest.param({"num_threads": 1}, id="one-thread"),
        pytest.param({"num_threads": 3}, id="three-threads"),
        pytest.param({"max_num_seqs": 5}, id="small-batches"),
        pytest.param({"block_size": 32}, id="blocks-of-32"),
    ],
)
def test_how_steps_are_run_changes_no_bit(
    options: dict[str, Any], prompts: list[list[int]], params: list[Params], solo: Bits
) -> None:
    with make_llm(**options) as engine:
        assert bits(engine.generate(prompts[SOME], params[SOME])) == solo[SOME]


def test_a_prefix_hit_equals_a_miss(
    prompts: list[list[int]], params: list[Params], solo: Bits
) -> None:
    prompts, params = prompts[SOME], params[SOME]
    with make_llm(enable_prefix_caching=True) as engine:
        for repeat in range(2):
            completions = engine.generate(prompts, params)
            assert bits(completions) == solo[SOME]
            hits = [c.num_cached_tokens for c in completions]
            if repeat:
                assert [h > 0 for h in hits] == [
                    len(p) > 16 and s.prompt_logprobs is None
                    for p, s in zip(prompts, params, strict=True)
                ]


def test_preemption_changes_no_bit(prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=60, logprobs=1, ignore_eos=True)
    some = [prompt[:40] for prompt in prompts[:12]]
    with make_llm() as engine:
        expected = bits(engine.generate(some, params))
    pool = 40 * 16 * 11_880  # 40 blocks: 7 sequences at their full length
    with make_llm(
        kv_reservation="optimistic", kv_cache_memory_bytes=pool, max_model_len=128
    ) as engine:
        assert bits(engine.generate(some, params)) == expected
        assert engine._core._scheduler.num_preemptions > 0


def test_choices_of_one_request_equal_those_alone(llm: LLM, prompts: list[list[int]]) -> None:
    common = {"temperature": 1.0, "seed": 11, "max_tokens": 10, "ignore_eos": True}
    prompt = prompts[1]
    (several,) = llm.generate([prompt], SamplingParams(n=4, **common))
    (one,) = llm.generate([prompt], SamplingParams(n=1, **common))
    assert several.outputs[0].token_ids == one.outputs[0].token_ids
    assert len({tuple(output.token_ids) for output in several.outputs}) == 4
    crowd = llm.generate(prompts[:20], SamplingParams(n=3, **common))
    assert [o.token_ids for o in crowd[1].outputs] == [
        output.token_ids for output in several.outputs[:3]
    ]


def test_512_streams_at_once_equal_small_batches(llm: LLM, prompts: list[list[int]]) -> None:
    rng = random.Random(9)
    many = [rng.choice(prompts)[: rng.randint(1, 8)] for _ in range(512)]
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=4, ignore_eos=True) for i in range(512)
    ]
    with make_llm(max_num_seqs=512, max_num_batched_tokens=1024) as engine:
        at_once = engine.generate(many, params)
        assert engine._core._scheduler.kv_blocks_used == 0
    few = slice(0, 512, 8)
    assert bits(llm.generate(many[few], params[few])) == bits(at_once[few])
