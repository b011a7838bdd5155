"""The native operators: the same bits in any batch and on any number of threads, and right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from random_model import EPS, HIDDEN, VOCAB, RandomLayer, RandomModel, quantized
from step_driver import Chunk, RowRequest, StepDriver
from takt.ops.native.ops import NativeOps
from takt.types.kv import KVDtype, KVGroupSpec
from takt.types.quant import QuantType

F32, F16, BF16 = QuantType.F32, QuantType.F16, QuantType.BF16
Q4_0, Q4_1, Q5_1, Q8_0 = QuantType.Q4_0, QuantType.Q4_1, QuantType.Q5_1, QuantType.Q8_0

MIXED = [
    RandomLayer(kinds=(Q4_1, Q8_0, F32, Q4_0, Q4_1, Q4_1, Q8_0), bias=True),
    RandomLayer(window=24, kinds=(Q8_0, Q5_1, Q4_0, BF16, Q8_0, Q8_0, F16), head_norms=True),
    RandomLayer(kinds=(BF16, BF16, BF16, Q5_1, F32, Q8_0, Q4_1), post_norms=True,
                activation="gelu_tanh"),
]  # fmt: skip

MakeOps = Callable[[int], NativeOps]


@pytest.fixture
def make_ops() -> Iterator[MakeOps]:
    made: list[NativeOps] = []

    def make(num_threads: int) -> NativeOps:
        made.append(NativeOps(num_threads))
        return made[-1]

    yield make
    for ops in made:
        ops.close()


@pytest.fixture(scope="module")
def mixed() -> RandomModel:
    return RandomModel(MIXED, head=Q8_0)


def tokens_of(count: int, seed: int, vocab: int = VOCAB) -> list[int]:
    return np.random.default_rng(seed).integers(vocab, size=count).tolist()


def all_rows(tokens: Sequence[int], vocab: int = VOCAB) -> list[RowRequest]:
    return [RowRequest(i, num_logprobs=vocab) for i in range(len(tokens))]


def score(driver: StepDriver, tokens: list[int], sizes: Sequence[int]) -> np.ndarray:
    """Logprobs float32 `[num_tokens, vocab]` of one sequence alone, in chunks of such sizes."""
    vocab = driver.limits.max_logprobs
    sequence, rows, start, turn = driver.new_sequence(), [], 0, 0
    while start < len(tokens):
        chunk = tokens[start : start + sizes[turn % len(sizes)]]
        start, turn = start + len(chunk), turn + 1
        (results,) = driver.step([Chunk(sequence, chunk, all_rows(chunk, vocab))])
        rows += [r.logprobs(vocab) for r in results]
    driver.restart()
    return np.stack(rows)


def score_together(driver: StepDriver, prompts: list[list[int]], seed: int) -> list[np.ndarray]:
    """The same of many sequences in shared steps, in ragged chunks and a changing order."""
    rng = np.random.default_rng(seed)
    sequences = [driver.new_sequence() for _ in prompts]
    done = [0] * len(prompts)
    rows: list[list[np.ndarray]] = [[] for _ in prompts]
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        order = [int(i) for i in rng.permutation(len(prompts)) if done[i] < len(prompts[i])]
        chosen = order[: max(1, int(rng.integers(len(order) + 1)))]
        chunks = []
        for i in chosen:
            size = 1 if rng.random() < 0.5 else int(rng.integers(1, 40))
            chunk = prompts[i][done[i] : done[i] + size]
            done[i] += len(chunk)
            chunks.append(Chunk(sequences[i], chunk, all_rows(chunk)))
        for i, results in zip(chosen, driver.step(chunks), strict=True):
            rows[i] += [r.logprobs(VOCAB) for r in results]
    driver.restart()
    return [np.stack(r) for r in rows]


PROMPTS = [tokens_of(count, seed=count) for count in (1, 5, 17, 40, 77, 128)]


@pytest.mark.parametrize("kv_dtype", KVDtype)
def test_alone_equals_batched_equals_chunked(
    make_ops: MakeOps, mixed: RandomModel, kv_dtype: KVDtype
) -> None:
    driver = mixed.drive(make_ops(2), kv_dtype=kv_dtype)
    alone = [score(driver, p, [len(p)]) for p in PROMPTS]
    for p, expected in zip(PROMPTS, alone, strict=True):
        np.testing.assert_array_equal(score(driver, p, [1]), expected)
        np.testing.assert_array_equal(score(driver, p, [7, 1, 30]), expected)
    for seed in range(3):
        for rows, expected in zip(score_together(driver, PROMPTS, seed), alone, strict=True):
            np.testing.assert_array_equal(rows, expected)


def test_number_of_threads_and_capture_do_not_matter(make_ops: MakeOps, mixed: RandomModel) -> None:
    expected = score_together(mixed.drive(make_ops(1)), PROMPTS, seed=5)
    for num_threads, eager in ((2, False), (3, False), (1, True), (2, True)):
        driver = mixed.drive(make_ops(num_threads), eager=eager)
        for rows, other in zip(score_together(driver, PROMPTS, seed=5), expected, strict=True):
            np.testing.assert_array_equal(rows, other)


def test_context_of_many_splits_does_not_depend_on_chunks(make_ops: MakeOps) -> None:
    model = RandomModel([RandomLayer(), RandomLayer(window=600)])
    prompt = tokens_of(1400, seed=2)  # several splits of the context
    options = {"max_seq_tokens": 1536, "max_num_seqs": 2, "max_num_tokens": 1400}

    def last_rows(driver: StepDriver, sizes: Sequence[int]) -> np.ndarray:
        sequence, start, turn, kept = driver.new_sequence(), 0, 0, []
        while start < len(prompt):
            chunk = prompt[start : start + sizes[turn % len(sizes)]]
            start, turn = start + len(chunk), turn + 1
            rows = [RowRequest(num_logprobs=VOCAB)] if start >= 1300 else []
            kept += driver.step([Chunk(sequence, chunk, rows)])[0]
        driver.restart()
        return kept[-1].logprobs(VOCAB)

    expected = last_rows(model.drive(make_ops(1), **options), [1400])
    driver = model.drive(make_ops(2), **options)
    for sizes in ([1400], [512], [1, 300, 17], [1399, 1]):
        np.testing.assert_array_equal(last_rows(driver, sizes), expected)


def fp32_tolerance(model: RandomModel, logits: np.ndarray, positions: int) -> float:
    """Of a logprob: see `model_driver.fp32_logprob_tolerance`, which derives it."""
    products = (7 * len(model.layers) + 1) * np.sqrt(max(HIDDEN, 192, 192))
    angles = len(model.layers) * positions
    return float(2 * 4 * (products + angles) * 2.0**-24 * np.abs(logits).max())


@pytest.mark.parametrize(
    "layers",
    [
        [RandomLayer(), RandomLayer(bias=True)],
        [RandomLayer(window=9), RandomLayer(head_norms=True)],
        [RandomLayer(post_norms=True, activation="gelu_tanh"), RandomLayer(window=33)],
    ],
    ids=["plain-bias", "window-head_norms", "post_norms-gelu"],
)
@pytest.mark.parametrize("softcap", [0.0, 20.0])
def test_float32_matches_float64(
    make_ops: MakeOps, layers: list[RandomLayer], softcap: float
) -> None:
    model = RandomModel(layers, softcap=softcap)
    tokens = tokens_of(70, seed=8)
    logits = model.reference_logits(tokens)
    expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    rows = score(model.drive(make_ops(2)), tokens, [70])
    assert np.abs(rows - expected).max() <= fp32_tolerance(model, logits, len(tokens))


@pytest.mark.parametrize("kind", [Q4_0, Q4_1, QuantType.Q5_0, Q5_1, Q8_0])
def test_quantised_head_errs_by_the_rounding_of_activations(
    make_ops: MakeOps, kind: QuantType
) -> None:
    rng = np.random.default_rng(4)
    table, values = quantized(rng.normal(size=(VOCAB, HIDDEN)), kind)
    source, states = quantized(rng.normal(size=(VOCAB, HIDDEN)), F32)
    norm = rng.uniform(0.5, 1.5, HIDDEN)
    ops = make_ops(2)
    head, embed = ops.pack_linear([table]), ops.pack_linear([source])
    weight = ops.pack_vector(norm.astype(np.float32))

    def forward() -> None:
        x, _ = ops.norm(ops.embed(embed, 1.0), weight, EPS)
        ops.sample(ops.logits(x, head, 0.0))

    driver = StepDriver(
        ops, forward, (KVGroupSpec((0,), None),), num_kv_heads=1, head_dim=32, max_logprobs=VOCAB
    )
    tokens = tokens_of(50, seed=6)
    x = states[tokens]
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * norm
    logits = x @ values.T
    expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    # An element of a group of 32 is off by half of max|x| / 127 at most, each logit by the sum of
    # that times |w|; the logsumexp errs as its worst logit. 1e-4 is for fp32 sums of 128 terms of
    # size 10.
    step = np.abs(x.reshape(len(x), -1, 32)).max(-1).repeat(32, axis=1) / 127
    bound = 0.5 * step @ np.abs(values).T
    tolerance = bound + bound.max(-1, keepdims=True) + 1e-4
    rows = score(driver, tokens, [50])
    assert (np.abs(rows - expected) <= tolerance).all()


def test_rows_beyond_one_block_of_logits(make_ops: MakeOps) -> None:
    vocab = 90_000  # 46 rows of logits at a time
    model = RandomModel([RandomLayer()], head=Q8_0, vocab=vocab)
    driver = model.drive(make_ops(2), max_num_rows=160, max_logprobs=1)
    tokens = tokens_of(150, seed=3, vocab=vocab)

    def greedy(rows: list[RowRequest]) -> list[tuple[int, float, int]]:
        (results,) = driver.step([Chunk(driver.new_sequence(), tokens, rows)])
        driver.restart()
        return [(r.token_id, r.logprob, r.rank) for r in results]

    together = greedy([RowRequest(i, num_logprobs=0) for i in range(150)])
    assert len({token for token, _, _ in together}) > 50
    assert all(rank == 1 for _, _, rank in together)
    for i in (0, 45, 46, 47, 91, 92, 149):
        assert greedy([RowRequest(i, num_logprobs=0)]) == [together[i]]
    assert greedy([]) == []


def test_many_rows_of_one_token(make_ops: MakeOps, mixed: RandomModel) -> None:
    driver = mixed.drive(make_ops(2))
    chunk = tokens_of(3, seed=1)
    drawn = [RowRequest(2, temperature=30.0, seed=s, position=3) for s in range(400)]
    (results,) = driver.step([Chunk(driver.new_sequence(), chunk, drawn)])
    assert len({r.token_id for r in results}) > 20
    (again,) = driver.step([Chunk(driver.new_sequence(), chunk, drawn[300:])])
    assert [r.token_id for r in again] == [r.token_id for r in results[300:]]


@pytest.mark.parametrize("kv_dtype", KVDtype)
def test_block_copies_come_first(make_ops: MakeOps, mixed: RandomModel, kv_dtype: KVDtype) -> None:
    driver = mixed.drive(make_ops(2), kv_dtype=kv_dtype)
    tokens = tokens_of(20, seed=9)
    row = RowRequest(num_logprobs=VOCAB)
    first, fork = driver.new_sequence(), driver.new_sequence()
    driver.step([Chunk(first, tokens, ())])
    fork.num_tokens = 20
    copies = [
        (g, int(table[0, b]), int(table[1, b]))
        for g, table in enumerate(driver._blocks)
        for b in range(2)
    ]
    results = driver.step([Chunk(fork, [7], [row]), Chunk(first, [7], [row])], copies)
    np.testing.assert_array_equal(results[0][0].logprobs(VOCAB), results[1][0].logprobs(VOCAB))
