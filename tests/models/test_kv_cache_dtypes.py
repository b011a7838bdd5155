"""Engines on tiny models whose KV cache is fp8 or int8: no bit depends on how a step came about."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from takt import LLM, SamplingParams
from takt.errors import ConfigError
from tiny_models import VOCAB_SIZE, TinyMaker

pytestmark = pytest.mark.oracle

BLOCK = 8
# gemma3 has sliding windows; the other shares its head and has none.
MODELS = ["llama_tied", "gemma3"]
DTYPES = ["bfloat16", "fp8", "int8"]
Bits = list[tuple[list[int], Any, Any]]
MakeLLM = Callable[..., LLM]


@pytest.fixture(scope="module")
def make_llm(tmp_path_factory: pytest.TempPathFactory, tiny: TinyMaker) -> MakeLLM:
    """Engines on tiny models, which have no tokenizer of their own: one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    vocab |= {f"<{i}>": i for i in range(len(vocab), VOCAB_SIZE)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    file = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    tokenizer.save(str(file))

    def make(name: str, dtype: str, **options: Any) -> LLM:
        return LLM(
            str(tiny(name)[0]),
            **{
                "tokenizer": str(file),
                "kv_cache_dtype": dtype,
                "block_size": BLOCK,
                "kv_cache_memory_bytes": 8 << 20,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 48,
                "num_threads": 2,
                **options,
            },
        )

    return make


def bits(llm: LLM, prompts: list[list[int]], **options: Any) -> Bits:
    params = [
        SamplingParams(
            temperature=0.9, seed=i, max_tokens=12, ignore_eos=True, logprobs=3, prompt_logprobs=1,
            **options,
        )
        for i in range(len(prompts))
    ]  # fmt: skip
    return [
        (output.token_ids, output.logprobs, completion.prompt_logprobs)
        for completion in llm.generate(prompts, params)
        for output in completion.outputs
    ]


@pytest.fixture
def prompts() -> list[list[int]]:
    """Some longer than a step and than the window, two that begin alike, one block and a token."""
    rng = random.Random(3)
    shared = [rng.randrange(4, VOCAB_SIZE) for _ in range(41)]
    rest = [[rng.randrange(4, VOCAB_SIZE) for _ in range(n)] for n in (1, 9, 70, 130)]
    return [[*shared, 5], [*shared, 6, 7], *rest]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_chunks_and_prefix_hits_change_no_bit(
    make_llm: MakeLLM, prompts: list[list[int]], name: str, dtype: str
) -> None:
    with make_llm(name, dtype, enable_prefix_caching=False) as llm:
        together = bits(llm, prompts)
    for options in (
        {"max_num_seqs": 1, "max_num_batched_tokens": 256, "num_threads": 1},
        {"max_num_batched_tokens": 9, "num_threads": 3},
        {"enforce_eager": True},
    ):
        with make_llm(name, dtype, enable_prefix_caching=False, **options) as llm:
            assert bits(llm, prompts) == together, options
    with make_llm(name, dtype) as llm:
        first = llm.generate(prompts, SamplingParams(max_tokens=1))
        again = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0.0))
        assert [c.prompt_token_ids for c in first] == [c.prompt_token_ids for c in again]
        greedy = [c.outputs[0].token_ids for c in again]
    with make_llm(name, dtype, enable_prefix_caching=False) as llm:
        miss = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0.0))
        assert [c.outputs[0].token_ids for c in miss] == greedy


@pytest.mark.parametrize("dtype", DTYPES)
def test_choices_that_copy_blocks_equal_those_alone(
    make_llm: MakeLLM, prompts: list[list[int]], dtype: str
) -> None:
    prompt = prompts[0][: 2 * BLOCK + 3]
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True, n=3)
    with make_llm("gemma3", dtype) as llm:
        (several,) = llm.generate([prompt], params)
        (one,) = llm.generate([prompt], SamplingParams(
            temperature=1.0, seed=4, max_tokens=20, ignore_eos=True
        ))  # fmt: skip
    assert several.outputs[0].token_ids == one.outputs[0].token_ids
    assert len({tuple(o.token_ids) for o in several.outputs}) == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_preemption_changes_no_bit(make_llm: MakeLLM, prompts: list[list[int]], dtype: str) -> None:
    with make_llm("llama_tied", dtype) as llm:
        block_bytes = llm._core.sizes.kv.block_bytes(0)
        expected = bits(llm, prompts)
    tight = {"kv_cache_memory_bytes": 24 * block_bytes, "max_model_len": 160}
    with make_llm("llama_tied", dtype, kv_reservation="optimistic", **tight) as llm:
        assert llm._core.sizes.num_blocks == (24,)
        assert bits(llm, prompts) == expected


def test_a_type_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fp8_e5m2.*int8"):
        LLM("smollm2-135m", kv_cache_dtype="fp8_e5m2")
