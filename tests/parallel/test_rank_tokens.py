"""Ranks give the tokens of one process. `--whole-matrix` takes every combination of sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rank_group import RankGroup

from model_driver import drive_model, int8_logprob_bound
from step_driver import Chunk, RowRequest, StepDriver
from takt.parallel.layout import ParallelLayout
from takt.types.kv import KVDtype
from tiny_models import CONFIGS, VOCAB_SIZE, random_prompt

pytestmark = pytest.mark.oracle

MATRIX = list(itertools.product(CONFIGS, (1, 2, 4), (1, 2, 4)))
COVERING = [
    ("llama_tied", 4, 4),
    ("llama_biased", 4, 2),
    ("llama3", 2, 4),
    ("mistral", 2, 2),
    ("qwen2", 4, 1),
    ("qwen2_windowed", 2, 2),
    ("qwen3", 1, 4),
    ("gemma3", 4, 2),
    ("gemma3_scaled", 2, 4),
]
"""Every architecture, every size, and every pair of sizes above 1."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole-matrix", default=False)
        cases = [case for case in MATRIX if case[1:] != (1, 1)] if whole else COVERING
        metafunc.parametrize("case", cases, ids=lambda c: f"{c[0]}-tp{c[1]}-pp{c[2]}")


def generate(driver: StepDriver) -> list[list[int]]:
    """Greedy tokens of three sequences, prompts in one step; and drawn ones of a fourth."""
    prompts = [random_prompt(length, seed=length) for length in (3, 17, 40)]
    tokens = driver.generate_together(prompts, 10)
    sequence, pending, drawn = driver.new_sequence(), random_prompt(9, seed=1), []
    for position in range(6):
        row = RowRequest(
            temperature=0.8,
            top_p=0.9,
            seed=3,
            position=position,
            repetition_penalty=1.2,
            history=dict.fromkeys(drawn, 1),
            bias={7: -1.0},
        )
        (result,) = driver.step([Chunk(sequence, pending, [row])])[0]
        drawn.append(result.token_id)
        pending = [result.token_id]
    return [*tokens, drawn]


def test_ranks_give_the_tokens_of_one(
    divisible: Callable[..., Path], case: tuple[str, int, int]
) -> None:
    name, tensor_size, num_stages = case
    path = divisible(name)
    expected = generate(drive_model(path, "native", dtype="float32", num_threads=1).driver)
    ranks = RankGroup(path, ParallelLayout(tensor_size, num_stages), "native")
    try:
        assert generate(ranks.drive(max_logprobs=1)) == expected
    finally:
        ranks.close()


@pytest.mark.parametrize("layout", [ParallelLayout(2, 2), ParallelLayout(4, 1)])
def test_torch_ranks_give_the_tokens_of_one(
    divisible: Callable[..., Path], layout: ParallelLayout
) -> None:
    path = divisible("gemma3")
    expected = generate(drive_model(path, "torch").driver)
    ranks = RankGroup(path, layout, "torch")
    try:
        assert generate(ranks.drive(max_logprobs=1)) == expected
    finally:
        ranks.close()


def test_called_one_by_one_the_operators_give_the_same(divisible: Callable[..., Path]) -> None:
    path = divisible("llama_tied")
    ranks = [RankGroup(path, ParallelLayout(2, 2), "native") for _ in range(2)]
    try:
        captured, eager = (
            generate(group.drive(max_logprobs=1, eager=is_eager))
            for group, is_eager in zip(ranks, (False, True), strict=True)
        )
        assert captured == eager
    finally:
        for group in ranks:
            group.close()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_packed_shards_err_by_their_int8_activations(
    divisible: Callable[..., Path], kind: str
) -> None:
    """Groups of activations are those of one process, and sums differ by fp32 roundings; so both
    stay within the bound of int8 activations around the fp32 model.
    """
    path, tokens = divisible("llama_tied", kind), random_prompt(40, seed=8)

    def logprobs(driver: StepDriver) -> np.ndarray:
        rows = driver.score(tokens, num_logprobs=VOCAB_SIZE)
        return np.stack([row.logprobs(VOCAB_SIZE) for row in rows])

    exact = logprobs(drive_model(path, "native", dtype="float32", num_threads=1).driver)
    ranks = RankGroup(path, ParallelLayout(4, 2), "native", dtype="auto")
    try:
        got = logprobs(ranks.drive(max_logprobs=VOCAB_SIZE, kv_dtype=KVDtype.BF16))
    finally:
        ranks.close()
    bound = int8_logprob_bound(float(exact.std(axis=-1).mean()))
    assert 0 < np.sqrt(np.mean((got - exact) ** 2)) < bound
