"""Ranks of real quantised models against one process. `--whole-matrix` takes all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from rank_group import RankGroup

from model_driver import drive_model, int8_logprob_bound
from step_driver import StepDriver
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer
from takt.parallel.layout import ParallelLayout
from takt.types.kv import KVDtype

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

SHORT = [("smollm2-135m", 3, 1)]
WHOLE = [
    *(("smollm2-135m", 3, stages) for stages in (1, 2, 4)),
    *(("gemma3-270m", size, stages) for size in (2, 4) for stages in (1, 4)),
]
PROMPTS = ("The capital of France is", "1, 1, 2, 3, 5, 8, 13,", "Once upon a time, in a village")
NUM_GENERATED = 6
SIZES = {
    "kv_dtype": KVDtype.BF16,
    "max_seq_tokens": 64,
    "max_num_seqs": 2 * len(PROMPTS),
    "max_num_tokens": 64,
    "max_num_rows": 32,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = WHOLE if metafunc.config.getoption("--whole-matrix", default=False) else SHORT
        names = [f"{name}-tp{tensor_size}-pp{stages}" for name, tensor_size, stages in cases]
        metafunc.parametrize("case", cases, ids=names, indirect=True)


@dataclass
class Pair:
    one: StepDriver
    ranks: StepDriver
    vocab_size: int
    prompts: list[list[int]]


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """One process and ranks, of a model as its file stores it."""
    name, tensor_size, num_stages = request.param
    path = resolve_model(name).path
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint)
    checkpoint.close()
    one = drive_model(path, "native", num_threads=1, **SIZES)
    ranks = RankGroup(path, ParallelLayout(tensor_size, num_stages), "native", dtype="auto")
    vocab_size = one.config.vocab_size
    try:
        yield Pair(
            one.driver,
            ranks.drive(max_logprobs=vocab_size, **SIZES),
            vocab_size,
            [tokenizer.encode(text, parse_special=False, add_bos=True) for text in PROMPTS],
        )
    finally:
        ranks.close()
        one.ops.close()


def greedy(driver: StepDriver, prompt: list[int]) -> list[int]:
    return [row.token_id for row in driver.generate(prompt, NUM_GENERATED)]


def logprobs(driver: StepDriver, tokens: list[int], vocab_size: int) -> np.ndarray:
    """float64 `[NUM_GENERATED, vocab_size]`, of the positions that predict the last tokens."""
    rows = driver.score(tokens, num_logprobs=vocab_size)[-NUM_GENERATED:]
    return np.stack([row.logprobs(vocab_size) for row in rows]).astype(np.float64)


def test_greedy_tokens_are_those_of_one_process_within_the_bound_of_int8(case: Pair) -> None:
    """Weights, and groups of activations, are the same numbers in ranks and in one process. What
    differs is the order of fp32 sums over ranks: by roundings alone, until one of them takes an
    activation over the border between two int8 steps. That moves it by a step, as much as rounding
    to int8 may have moved it before, and from there on the two are different roundings of one fp32
    model. Each is within B = `int8_logprob_bound` of it in the root mean square, so they are within
    2 B of each other. A token whose logprob leads the next one's by more than twice that is the
    same in both.
    """
    num_sure = 0
    for prompt in case.prompts:
        expected_tokens, tokens = greedy(case.one, prompt), greedy(case.ranks, prompt)
        sequence = [*prompt, *expected_tokens]
        expected, got = (
            logprobs(driver, sequence, case.vocab_size) for driver in (case.one, case.ranks)
        )
        bound = 2 * int8_logprob_bound(float(expected.std(axis=-1).mean()))
        error = np.sqrt(np.mean((got - expected) ** 2))
        assert error < bound
        second, first = np.sort(expected, axis=-1)[:, -2:].T
        is_sure = first - second > 2 * bound
        assert (got.argmax(axis=-1) == expected.argmax(axis=-1))[is_sure].all()
        # Generated, not scored: they may part for good at the first token that is not sure.
        first_unsure = int(np.argmin(is_sure)) if not is_sure.all() else NUM_GENERATED
        assert tokens[:first_unsure] == expected_tokens[:first_unsure]
        num_sure += int(is_sure.sum())
    assert num_sure > 0, "these prompts say nothing"
