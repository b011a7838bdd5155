"""Sampling and scoring of one row of logits, as `Ops.sample` orders it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from takt.ops.torch.philox import uniform
from takt.types.step import NO_LOGPROBS, SAMPLE, StepInput, StepOutput

Floats = NDArray[np.floating[Any]]

LOGPROB_FLOOR = -9999.0
"""Reported in place of anything lower, so that a logprob is always finite."""


@dataclass(frozen=True, slots=True)
class SampleParams:
    """What one row asks for; the fields are those of `StepInput`'s rows."""

    target: int
    num_logprobs: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    choice: int
    position: int
    history_token: NDArray[np.int32]
    history_count: NDArray[np.int32]
    bias_token: NDArray[np.int32]
    bias_value: NDArray[np.float32]


def read_params(step: StepInput, row: int) -> SampleParams:
    history = slice(step["history_start"][row], step["history_start"][row + 1])
    bias = slice(step["bias_start"][row], step["bias_start"][row + 1])
    return SampleParams(
        target=int(step["row_targets"][row]),
        num_logprobs=int(step["row_num_logprobs"][row]),
        temperature=float(step["row_temperature"][row]),
        top_k=int(step["row_top_k"][row]),
        top_p=float(step["row_top_p"][row]),
        min_p=float(step["row_min_p"][row]),
        repetition_penalty=float(step["row_repetition_penalty"][row]),
        presence_penalty=float(step["row_presence_penalty"][row]),
        frequency_penalty=float(step["row_frequency_penalty"][row]),
        seed=int(step["row_seed"][row]),
        choice=int(step["row_choice"][row]),
        position=int(step["row_position"][row]),
        history_token=step["history_token"][history],
        history_count=step["history_count"][history],
        bias_token=step["bias_token"][bias],
        bias_value=step["bias_value"][bias],
    )


def sample_rows(logits: NDArray[np.float32], step: StepInput, output: StepOutput) -> None:
    """`logits` is `[num_rows, vocab_size]`; fills the output's rows."""
    for row in range(step.num_rows):
        params = read_params(step, row)
        token = params.target
        if token == SAMPLE:
            token = draw(adjust(logits[row], params), params)
        output["token_ids"][row] = token
        output["logprobs"][row] = 0.0
        output["ranks"][row] = 0
        if params.num_logprobs != NO_LOGPROBS:
            report(logits[row], token, params.num_logprobs, row, output)


def adjust(logits: NDArray[np.float32], params: SampleParams) -> NDArray[np.float32]:
    """Logits after bias and penalties, a copy."""
    values = logits.copy()
    np.add.at(values, params.bias_token, params.bias_value)
    tokens, counts = params.history_token, params.history_count
    seen = values[tokens]
    penalty = np.float32(params.repetition_penalty)
    seen = np.where(seen > 0, seen / penalty, seen * penalty)
    seen -= counts.astype(np.float32) * np.float32(params.frequency_penalty)
    seen -= (counts > 0).astype(np.float32) * np.float32(params.presence_penalty)
    values[tokens] = seen
    return values


def draw(values: NDArray[np.float32], params: SampleParams) -> int:
    """The token that the filters and the row's random number choose."""
    best = int(values.argmax())
    if params.temperature == 0.0 or values[best] == -np.inf:
        return best
    order = np.argsort(-values, kind="stable")
    if params.top_k > 0:
        order = order[: params.top_k]
    # Relative to the most likely token, whose weight is 1: nothing overflows, however small the
    # temperature.
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((values[order].astype(np.float64) - values[best]) / params.temperature)
    if params.top_p < 1.0:
        sums = np.cumsum(weights)
        weights = weights[: np.searchsorted(sums, params.top_p * sums[-1]) + 1]
    weights = weights[weights >= params.min_p]
    sums = np.cumsum(weights)
    u = uniform(params.seed, params.choice, params.position)
    return int(order[np.searchsorted(sums, u * sums[-1], side="right")])


def report(
    logits: NDArray[np.float32], token: int, num_top: int, row: int, output: StepOutput
) -> None:
    """Writes the raw logprob and rank of `token`, and those of the `num_top` most likely."""
    logprobs = raw_logprobs(logits)
    before = (logits > logits[token]).sum() + (logits[:token] == logits[token]).sum()
    output["logprobs"][row] = logprobs[token]
    output["ranks"][row] = 1 + before
    if num_top > 0:
        top = best_ids(logits, num_top)
        output["top_token_ids"][row, : len(top)] = top
        output["top_logprobs"][row, : len(top)] = logprobs[top]


def best_ids(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ids of the `count` highest logits in descending order, ties by ascending id."""
    count = min(count, len(logits))
    lowest_kept = np.partition(logits, len(logits) - count)[len(logits) - count]
    candidates = np.flatnonzero(logits >= lowest_kept)
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order[:count]]


def raw_logprobs(logits: NDArray[np.float32]) -> Floats:
    """`log_softmax`, in float64, floored."""
    shifted = logits.astype(np.float64) - logits.max()
    logprobs: Floats = np.maximum(shifted - np.log(np.exp(shifted).sum()), LOGPROB_FLOOR)
    return logprobs
