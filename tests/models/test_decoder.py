"""The decoder on both backends against transformers, on tiny random models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_driver import (
    BACKENDS,
    bf16_logprob_bound,
    drive_model,
    fp32_logprob_tolerance,
    int8_logprob_bound,
    log_softmax,
)
from step_driver import Chunk, RowRequest
from takt.types.kv import KVDtype
from takt.types.precision import Int8Tokens
from tiny_models import (
    CONFIGS,
    GGUF_CONFIGS,
    VOCAB_SIZE,
    TinyMaker,
    random_prompt,
    reference_greedy,
    reference_logits,
)

pytestmark = pytest.mark.oracle

ALL = RowRequest(num_logprobs=VOCAB_SIZE)

FILES = [(name, None) for name in CONFIGS] + [(name, "F32") for name in GGUF_CONFIGS]
QUANTISED = [
    (name, kind)
    for name in ("llama_tied", "gemma3")
    for kind in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
]


def all_logprobs(rows: list) -> np.ndarray:
    return np.stack([row.logprobs(VOCAB_SIZE) for row in rows])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "kind"), FILES + QUANTISED)
def test_equals_transformers(tiny: TinyMaker, backend: str, name: str, kind: str | None) -> None:
    path, reference = tiny(name, kind)
    model = drive_model(path, backend, dtype="float32")
    prompt = random_prompt(50, seed=3)
    generated = model.driver.generate(prompt, 20, num_logprobs=VOCAB_SIZE)
    tokens = [row.token_id for row in generated]
    assert tokens == reference_greedy(reference, prompt, 20)

    logits = reference_logits(reference, prompt + tokens)
    tolerance = fp32_logprob_tolerance(model.config, logits, len(prompt) + len(tokens))
    assert tolerance < 0.02  # The bound is of use: logprobs here spread over several nats.
    expected = log_softmax(logits)
    np.testing.assert_allclose(all_logprobs(generated), expected[49:-1], rtol=0, atol=tolerance)

    scored = model.driver.score(prompt + tokens, num_logprobs=VOCAB_SIZE)
    np.testing.assert_allclose(all_logprobs(scored), expected[:-1], rtol=0, atol=tolerance)
    chosen = expected[np.arange(69), (prompt + tokens)[1:]]
    np.testing.assert_allclose([row.logprob for row in scored], chosen, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "kind"), QUANTISED)
def test_packed_weights_err_by_their_int8_activations(
    tiny: TinyMaker, name: str, kind: str
) -> None:
    """The default: weights stay packed. Unquantised types take no int8 activations and err less."""
    path, reference = tiny(name, kind)
    model = drive_model(path, "native", kv_dtype=KVDtype.BF16)
    tokens = random_prompt(60, seed=8)
    logits = reference_logits(reference, tokens)
    errors = all_logprobs(model.driver.score(tokens, num_logprobs=VOCAB_SIZE))
    errors -= log_softmax(logits)[:-1]
    bound = int8_logprob_bound(float(logits.std(axis=-1).mean()))
    assert np.sqrt(np.mean(errors**2)) < bound


@pytest.mark.parametrize(("name", "kind"), QUANTISED)
def test_prompts_in_bf16_err_by_their_rounding(tiny: TinyMaker, name: str, kind: str) -> None:
    """A prompt is all that is scored here, so nothing is int8."""
    path, _ = tiny(name, kind)
    tokens = random_prompt(60, seed=8)
    exact, got = (
        all_logprobs(
            drive_model(path, "native", dtype=dtype, int8_tokens=Int8Tokens.GENERATED).driver.score(
                tokens, num_logprobs=VOCAB_SIZE
            )
        )
        for dtype in ("float32", "auto")
    )
    error = np.sqrt(np.mean((got - exact) ** 2))
    assert error < bf16_logprob_bound(float(exact.std(axis=-1).mean()))
    if kind not in ("F16", "BF16"):
        assert error > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_chunked_prompt_equals_whole(tiny: TinyMaker, backend: str, name: str) -> None:
    model = drive_model(tiny(name)[0], backend, dtype="float32")
    prompt = random_prompt(61, seed=4)
    whole = model.driver.generate(prompt, 8, num_logprobs=VOCAB_SIZE)
    for chunk_size in (1, 7, 16, 33):
        chunked = model.driver.generate(prompt, 8, chunk_size=chunk_size, num_logprobs=VOCAB_SIZE)
        assert_same_rows(backend, model.config, chunked, whole)
        model.driver.restart()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_batched_equals_alone(tiny: TinyMaker, backend: str, name: str) -> None:
    """Prompts of several lengths and a decode in the same steps."""
    model = drive_model(tiny(name)[0], backend, dtype="float32", max_num_seqs=16)
    driver = model.driver
    prompts = [random_prompt(length, seed=length) for length in (1, 5, 16, 40, 77)]
    alone = [driver.generate(prompt, 4, num_logprobs=VOCAB_SIZE) for prompt in prompts]
    sequences = [driver.new_sequence() for _ in prompts]
    first = driver.step([Chunk(sequences[3], prompts[3], [ALL])])
    pending = [prompts[0], prompts[1], prompts[2], [first[0][0].token_id], prompts[4]]
    together = [[], [], [], [first[0][0]], []]
    for _ in range(4):
        chunks = [Chunk(s, t, [ALL]) for s, t in zip(sequences, pending, strict=True)]
        for i, rows in enumerate(driver.step(chunks)):
            together[i].append(rows[0])
            pending[i] = [rows[0].token_id]
    for got, expected in zip(together, alone, strict=True):
        assert_same_rows(backend, model.config, got[:4], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama_tied", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    ("dtype", "error"),
    [(KVDtype.BF16, 2.0**-8), (KVDtype.FP8_E4M3, 2.0**-4), (KVDtype.INT8, 2.0**-7)],
)
def test_a_narrow_cache_errs_by_its_rounding(
    tiny: TinyMaker, backend: str, name: str, dtype: KVDtype, error: float
) -> None:
    """A rounded key or value errs by at most `error` of itself (with int8, of the largest of its
    head); independent roundings of the two move scores and mixed values by that fraction, which
    adds up over layers as fp32's roundings do.
    """
    path, reference = tiny(name)
    model = drive_model(path, backend, dtype="float32", kv_dtype=dtype)
    tokens = random_prompt(60, seed=5)
    expected = log_softmax(reference_logits(reference, tokens))[:-1]
    errors = all_logprobs(model.driver.score(tokens, num_logprobs=VOCAB_SIZE)) - expected
    scale = np.abs(reference_logits(reference, tokens)).max()
    assert np.abs(errors).max() < 2 * 4 * 2 * model.config.num_layers * error * scale
    assert np.abs(errors).max() > 1e-4  # The cache did round.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_dtype_rounds_the_weights(
    tiny: TinyMaker, backend: str, dtype: str, kind: str | None
) -> None:
    """Weights rounded to the type; a native backend may round activations to bfloat16 too."""
    path, reference = tiny("llama_tied", kind)
    rounded = type(reference)(reference.config)
    rounded.load_state_dict(
        {
            name: value.to(getattr(torch, dtype)).float() if value.ndim == 2 else value
            for name, value in reference.state_dict().items()
        }
    )
    tokens = random_prompt(40, seed=6)
    logits = reference_logits(rounded.eval(), tokens)
    model = drive_model(path, backend, dtype=dtype)
    got = all_logprobs(model.driver.score(tokens, num_logprobs=VOCAB_SIZE))
    tolerance = fp32_logprob_tolerance(model.config, logits, len(tokens))
    if backend == "native":
        # One rounding of 2^-8 per product's input instead of sqrt(K) roundings of 2^-24.
        tolerance = 2 * 4 * (4 * model.config.num_layers + 1) * 2.0**-8 * np.abs(logits).max()
    np.testing.assert_allclose(got, log_softmax(logits)[:-1], rtol=0, atol=tolerance)


def assert_same_rows(backend: str, config, got: list, expected: list) -> None:
    """Bit for bit where the backend promises it, else within rounding."""
    assert [row.token_id for row in got] == [row.token_id for row in expected]
    got_values, expected_values = all_logprobs(got), all_logprobs(expected)
    if backend == "native":
        np.testing.assert_array_equal(got_values, expected_values)
        return
    tolerance = fp32_logprob_tolerance(config, expected_values, 128)
    np.testing.assert_allclose(got_values, expected_values, rtol=0, atol=tolerance)
