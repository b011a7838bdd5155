"""SmolLM2 and Gemma 3 on both backends, against transformers' own reading of the same file."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from model_driver import (
    DrivenModel,
    drive_model,
    fp32_logprob_tolerance,
    int8_logprob_bound,
    log_softmax,
)
from step_driver import RowResult
from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer
from takt.types.kv import KVDtype

# Two readers, three backends and two minutes of CPU; more on a machine that others use too.
pytestmark = [pytest.mark.model, pytest.mark.oracle, pytest.mark.timeout(1200)]

NUM_GENERATED = 64
NUM_COMPARED = 64
"""Tokens compared at each position: the reference's most likely."""
NUM_LOGPROBS = 1024
"""Asked of our own, so that those are surely among them."""

TEXT = Path(__file__).parent.parent / "data" / "opticks.txt"

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old",
    "def fibonacci(n):\n    ",
    "Q: What is the boiling point of water at sea level?\nA:",
    "The three laws of thermodynamics state that",
    "Rezept für Apfelkuchen: Man nehme 200 g Mehl,",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
)


@dataclass
class Reference:
    """What transformers makes of prompts and the tokens that the torch backend generated.

    Positions are those that predict a generated token: `[num_prompts, NUM_GENERATED]` first.
    """

    path: Path
    prompts: list[list[int]]
    generated: list[list[int]]
    argmax: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    spread: np.ndarray
    """Standard deviation of a position's logits over the vocabulary."""
    largest_logit: float


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m"])
def reference(request: pytest.FixtureRequest) -> Reference:
    """One model is in memory at a time."""
    # More threads wait for each other at every operator where the machine is shared.
    torch.set_num_threads(1)
    path = resolve_model(request.param).path
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint)
    checkpoint.close()
    prompts = [tokenizer.encode(text, parse_special=False, add_bos=True) for text in PROMPTS]
    generated = generate(path, "torch", prompts)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    argmax, top_ids, top_logprobs, spread, largest = [], [], [], [], 0.0
    for prompt, tokens in zip(prompts, generated, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0]
        logits = logits[len(prompt) - 1 : -1].numpy()
        logprobs = log_softmax(logits)
        order = np.argpartition(-logits, NUM_COMPARED, axis=-1)[:, :NUM_COMPARED]
        argmax.append(logits.argmax(axis=-1))
        top_ids.append(order)
        top_logprobs.append(np.take_along_axis(logprobs, order, axis=-1))
        spread.append(logits.std(axis=-1))
        largest = max(largest, float(np.abs(logits).max()))
    del model
    gc.collect()
    return Reference(
        path,
        prompts,
        generated,
        np.stack(argmax),
        np.stack(top_ids),
        np.stack(top_logprobs),
        np.stack(spread),
        largest,
    )


def drive(path: Path, backend: str, dtype: str, kv_dtype: KVDtype) -> DrivenModel:
    return drive_model(
        path,
        backend,
        dtype=dtype,
        kv_dtype=kv_dtype,
        num_threads=1,
        max_num_rows=128,
        max_logprobs=NUM_LOGPROBS,
    )


def generate(path: Path, backend: str, prompts: list[list[int]]) -> list[list[int]]:
    model = drive(path, backend, "float32", KVDtype.F32)
    tokens = model.driver.generate_together(prompts, NUM_GENERATED)
    model.ops.close()
    return tokens


def compared(rows: list[RowResult], ids: np.ndarray) -> np.ndarray:
    """Logprobs of `ids[i]` at row i."""
    values = []
    for row, wanted in zip(rows, ids.tolist(), strict=True):
        found = dict(row.top)
        values.append([found[token] for token in wanted])
    return np.array(values)


def score_generated(model: DrivenModel, reference: Reference, i: int) -> list[RowResult]:
    """Along the reference's tokens; rows of generated tokens only."""
    model.driver.restart()
    prompt, tokens = reference.prompts[i], reference.generated[i]
    return model.driver.score(prompt + tokens, num_logprobs=NUM_LOGPROBS)[len(prompt) - 1 :]


def test_torch_greedy_tokens_equal_transformers(reference: Reference) -> None:
    """Each generated token is the reference's first choice after those before it: the reference,
    decoding greedily, gives the same text.
    """
    np.testing.assert_array_equal(np.array(reference.generated), reference.argmax)


def test_native_float32_greedy_tokens_equal_transformers(reference: Reference) -> None:
    tokens = generate(reference.path, "native", reference.prompts)
    np.testing.assert_array_equal(np.array(tokens), reference.argmax)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_float32_logprobs_equal_transformers(reference: Reference, backend: str) -> None:
    model = drive(reference.path, backend, "float32", KVDtype.F32)
    tolerance = fp32_logprob_tolerance(
        model.config, np.array(reference.largest_logit), NUM_GENERATED
    )
    for i in range(len(PROMPTS)):
        got = compared(score_generated(model, reference, i), reference.top_ids[i])
        np.testing.assert_allclose(got, reference.top_logprobs[i], rtol=0, atol=tolerance)
    model.ops.close()


def test_default_errs_by_its_quantised_activations(reference: Reference) -> None:
    """As served by default: the file's weights, int8 activations, an int8 cache.

    A choice may change where the reference's lead is within a difference of two errors: sqrt(2) of
    one, and 4 of those are not exceeded once in 10,000 choices.
    """
    model = drive(reference.path, "native", "auto", KVDtype.INT8)
    errors, leads = [], []
    for i in range(len(PROMPTS)):
        rows = score_generated(model, reference, i)
        values = compared(rows, reference.top_ids[i])
        errors.append(values - reference.top_logprobs[i])
        for row, ids, logprobs in zip(
            rows, reference.top_ids[i], reference.top_logprobs[i], strict=True
        ):
            of = dict(zip(ids.tolist(), logprobs.tolist(), strict=True))
            leads.append(max(of.values()) - of[row.top[0][0]])
    model.ops.close()
    bound = int8_logprob_bound(reference.spread.mean())
    assert np.sqrt(np.mean(np.square(errors))) < bound
    assert max(leads) < 4 * np.sqrt(2) * bound


def test_default_perplexity_is_within_one_percent_of_fp32(reference: Reference) -> None:
    """On the beginning of the text that the benchmark takes whole."""
    checkpoint = open_checkpoint(reference.path)
    tokenizer = load_tokenizer(checkpoint)
    checkpoint.close()
    tokens = tokenizer.encode(TEXT.read_text(), parse_special=False, add_bos=True)[:1025]
    means = []
    for dtype, kv_dtype in (("auto", KVDtype.INT8), ("float32", KVDtype.F32)):
        model = drive_model(
            reference.path, "native", dtype=dtype, kv_dtype=kv_dtype, max_seq_tokens=2048,
            max_logprobs=0,
        )  # fmt: skip
        rows = model.driver.score(tokens, chunk_size=512)
        means.append(-np.mean([row.logprob for row in rows]))
        model.ops.close()
    assert np.exp(means[0] - means[1]) < 1.01
