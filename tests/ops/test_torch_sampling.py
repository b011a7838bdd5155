"""Sampling and scoring: what each parameter means, alike on every backend."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from model_driver import BACKENDS
from step_driver import Chunk, RowRequest, RowResult, StepDriver
from takt.ops.create import create_ops
from takt.ops.torch.philox import uniform
from takt.ops.torch.sampling import LOGPROB_FLOOR
from takt.types.kv import KVGroupSpec
from takt.types.quant import QuantTensor, QuantType

VOCAB = 64


def f32(values: np.ndarray) -> QuantTensor:
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint8)
    return QuantTensor(raw.reshape(len(values), -1), QuantType.F32, values.shape)


class Sampler:
    """A program whose logits are row t of a table for token t: embedding, then identity."""

    def __init__(self, backend: str, table: np.ndarray) -> None:
        ops = create_ops(backend, 1)
        padded = np.zeros((VOCAB, VOCAB), np.float32)
        padded[: len(table)] = table
        weight, identity = ops.pack_linear([f32(padded)]), ops.pack_linear([f32(np.eye(VOCAB))])

        def forward() -> None:
            ops.sample(ops.logits(ops.embed(weight, 1.0), identity, 0.0))

        self.driver = StepDriver(
            ops,
            forward,
            (KVGroupSpec((0,), None),),
            num_kv_heads=1,
            head_dim=32,
            max_num_seqs=1,
            max_num_rows=1024,
            max_logprobs=VOCAB,
        )

    def rows(self, requests: list[RowRequest], token: int = 0) -> list[RowResult]:
        self.driver.restart()
        return self.driver.step([Chunk(self.driver.new_sequence(), [token], requests)])[0]

    def one(self, token: int = 0, **request: Any) -> RowResult:
        return self.rows([RowRequest(**request)], token)[0]

    def many(self, count: int, **request: Any) -> Counter[int]:
        """Draws at `count` seeds."""
        results = self.rows([RowRequest(seed=seed, **request) for seed in range(count)])
        return Counter(row.token_id for row in results)


@pytest.fixture(params=BACKENDS)
def random_logits(request: pytest.FixtureRequest) -> tuple[Sampler, np.ndarray]:
    logits = np.random.default_rng(0).normal(0.0, 2.0, (1, VOCAB)).astype(np.float32)
    return Sampler(request.param, logits), logits[0]


@pytest.fixture(params=BACKENDS)
def tied_logits(request: pytest.FixtureRequest) -> Sampler:
    """Tokens 3, 7 and 9 share the first place, 1 and 2 the next."""
    logits = np.full((1, VOCAB), -4.0, np.float32)
    logits[0, [3, 7, 9]], logits[0, [1, 2]] = 2.0, 1.0
    return Sampler(request.param, logits)


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 0.0},
        {"temperature": 1e-9},
        {"temperature": 1e-38},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "min_p": 1.0},
    ],
)
def test_extremes_are_greedy(
    random_logits: tuple[Sampler, np.ndarray], extreme: dict[str, float]
) -> None:
    sampler, logits = random_logits
    assert set(sampler.many(20, **extreme)) == {int(logits.argmax())}


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}])
def test_lowest_id_wins_a_tie(tied_logits: Sampler, how: dict[str, float]) -> None:
    assert set(tied_logits.many(20, **how)) == {3}


def test_neutral_filters_are_off(random_logits: tuple[Sampler, np.ndarray]) -> None:
    sampler, _ = random_logits
    plain = [row.token_id for row in sampler.rows(seeded(100))]
    for off in ({"top_k": 0}, {"top_k": -1}, {"top_k": VOCAB}, {"top_p": 1.0}, {"min_p": 0.0}):
        assert [row.token_id for row in sampler.rows(seeded(100, **off))] == plain


def test_draw_is_the_inverse_of_the_cumulative_distribution(
    random_logits: tuple[Sampler, np.ndarray],
) -> None:
    """Exactly the token that the stated recipe names, for every key."""
    sampler, logits = random_logits
    order = np.argsort(-logits, kind="stable")
    keys = [(seed, choice, position) for seed in (0, 5, 2**63) for choice in (0, 3)
            for position in range(30)]  # fmt: skip
    requests = [RowRequest(temperature=0.7, seed=s, choice=c, position=p) for s, c, p in keys]
    sums = np.cumsum(np.exp((logits[order].astype(np.float64) - logits.max()) / np.float32(0.7)))
    for row, key in zip(sampler.rows(requests), keys, strict=True):
        assert row.token_id == order[np.searchsorted(sums, uniform(*key) * sums[-1], side="right")]


def test_draws_follow_the_distribution(random_logits: tuple[Sampler, np.ndarray]) -> None:
    """Pearson's statistic over tokens expected five times or more stays under its 1 - 1e-9
    quantile, by Wilson and Hilferty's approximation (normal quantile 6.0).
    """
    sampler, logits = random_logits
    counts: Counter[int] = Counter()
    for choice in range(8):
        counts += sampler.many(1000, temperature=1.0, choice=choice)
    probabilities = np.exp(logits - logits.max())
    expected = 8000 * probabilities / probabilities.sum()
    kept = expected >= 5
    observed = np.array([counts[i] for i in range(VOCAB)])
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    shrink = 2 / (9 * degrees)
    assert statistic < degrees * (1 - shrink + 6.0 * math.sqrt(shrink)) ** 3


def test_top_k_keeps_the_first_by_logit_then_id(tied_logits: Sampler) -> None:
    assert set(tied_logits.many(200, temperature=1.0, top_k=2)) == {3, 7}
    assert set(tied_logits.many(300, temperature=1.0, top_k=4)) == {3, 7, 9, 1}


def test_top_p_keeps_the_shortest_prefix_that_holds_it(tied_logits: Sampler) -> None:
    # Weights relative to the best: 1, 1, 1, 0.368, 0.368, then 59 of 0.0025; sum 3.882.
    assert set(tied_logits.many(200, temperature=1.0, top_p=0.5)) == {3, 7}
    assert set(tied_logits.many(300, temperature=1.0, top_p=0.8)) == {3, 7, 9, 1}


def test_top_p_counts_what_top_k_left(tied_logits: Sampler) -> None:
    # Of the three kept, two hold two thirds.
    assert set(tied_logits.many(200, temperature=1.0, top_k=3, top_p=0.66)) == {3, 7}
    assert set(tied_logits.many(200, temperature=1.0, top_k=3, top_p=0.67)) == {3, 7, 9}


def test_min_p_is_relative_to_the_most_likely(tied_logits: Sampler) -> None:
    assert set(tied_logits.many(300, temperature=1.0, min_p=0.4)) == {3, 7, 9}
    assert set(tied_logits.many(400, temperature=1.0, min_p=0.3)) == {3, 7, 9, 1, 2}


def test_penalties(tied_logits: Sampler) -> None:
    # Presence and frequency touch generated tokens only: 3 is in the prompt alone.
    history = {3: 0, 7: 2, 9: 1}
    assert tied_logits.one(history=history, presence_penalty=0.5).token_id == 3
    assert tied_logits.one(history=history, presence_penalty=-0.5).token_id == 7
    assert tied_logits.one(history=history, frequency_penalty=-0.5).token_id == 7
    # Repetition touches both: 2.0 / 4 falls below the 1.0 of token 1.
    assert tied_logits.one(history=history, repetition_penalty=4.0).token_id == 1
    # And makes a negative logit more so.
    bias = {3: -3.0, 7: -3.0, 9: -3.0, 1: -1.9, 2: -1.95}
    lone = tied_logits.one(history={1: 1}, repetition_penalty=1.1, bias=bias)
    assert lone.token_id == 2


def test_bias_moves_and_forbids(tied_logits: Sampler) -> None:
    assert tied_logits.one(bias={50: 100.0}).token_id == 50
    assert tied_logits.one(bias={3: -math.inf, 7: -math.inf}).token_id == 9
    drawn = tied_logits.many(300, temperature=1.0, bias={3: -math.inf, 9: -math.inf})
    assert 7 in drawn and not {3, 9} & set(drawn)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_forbidden_still_gives_one(
    tied_logits: Sampler, temperature: float
) -> None:
    forbidden = dict.fromkeys(range(VOCAB), -math.inf)
    row = tied_logits.one(bias=forbidden, temperature=temperature, num_logprobs=2)
    assert 0 <= row.token_id < VOCAB
    assert math.isfinite(row.logprob)


def test_logprobs_are_those_of_the_raw_model(random_logits: tuple[Sampler, np.ndarray]) -> None:
    sampler, logits = random_logits
    row = sampler.one(
        temperature=0.3, top_k=2, bias={5: 50.0}, history={9: 3}, presence_penalty=1.0,
        num_logprobs=VOCAB,
    )  # fmt: skip
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum())
    # A float32 near 10 is 2^-21 from its neighbour; exp and log in fp32 err by a few of those.
    np.testing.assert_allclose(row.logprobs(VOCAB), expected, rtol=0, atol=1e-5)
    assert row.token_id == 5
    assert row.logprob == pytest.approx(expected[5], abs=1e-5)
    order = np.argsort(-logits, kind="stable")
    assert [token for token, _ in row.top] == order.tolist()
    assert row.rank == 1 + order.tolist().index(5)


def test_scored_row_reports_its_target(tied_logits: Sampler) -> None:
    row = tied_logits.one(target=9, num_logprobs=2, temperature=1.0, bias={1: 100.0})
    assert row.token_id == 9
    assert row.rank == 3  # after 3 and 7, which tie with it
    assert [token for token, _ in row.top] == [3, 7]
    assert row.logprob == row.top[0][1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_improbable_target_has_a_finite_logprob(backend: str) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 1] = 3e4
    assert Sampler(backend, logits).one(target=0, num_logprobs=0).logprob == LOGPROB_FLOOR


def test_rows_do_not_touch_each_other(random_logits: tuple[Sampler, np.ndarray]) -> None:
    sampler, _ = random_logits
    requests = [
        RowRequest(temperature=1.0, seed=1, history={4: 2}, frequency_penalty=1.0),
        RowRequest(temperature=0.0, bias={8: 90.0}),
        RowRequest(temperature=1.3, seed=2, top_p=0.9, num_logprobs=3),
        RowRequest(target=6, num_logprobs=1),
        RowRequest(temperature=1.0, seed=1),
    ]
    together = sampler.rows(requests)
    assert together == [sampler.rows([request])[0] for request in requests]


def seeded(count: int, **request: Any) -> list[RowRequest]:
    return [RowRequest(seed=seed, temperature=1.0, **request) for seed in range(count)]
