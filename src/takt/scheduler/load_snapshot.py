"""What a step leaves for whoever decides on new requests, and the model that goes with it."""

from __future__ import annotations

import math

import msgspec

from takt.scheduler.step_kind import NUM_KINDS, PROMPT_KINDS, kind_of
from takt.scheduler.step_time import StepCoefficients, StepFeatures


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A request as far as its prompt is not computed."""

    order_ns: int
    """Its place: smaller goes first."""
    num_prompt_tokens: int
    num_computed_tokens: int
    num_seqs: int
    """Choices, each a sequence of its own once the prompt is computed."""
    max_tokens: int
    """Of output, for each sequence."""
    itl_ns: int | None
    """Its target, the server's included."""
    deadline_ns: int | None
    """When its first token is due; None if none was promised, or it is late already."""

    @property
    def num_final_tokens(self) -> int:
        """KV that it may come to hold."""
        return self.num_prompt_tokens + self.num_seqs * self.max_tokens


class LoadSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The engine's load after a step; times on its monotonic clock, which the host shares."""

    num_taken: int
    """Requests that the engine has taken since it started, refused ones included."""
    end_ns: int
    is_idle: bool
    num_decode_seqs: int
    num_kv_tokens: int
    """Context of the sequences that decode."""
    num_left_tokens: int
    """Output that they may still bring."""
    num_free_seats: int
    num_free_kv_tokens: int
    """Neither used nor reserved."""
    max_num_batched_tokens: int
    tightest_itl_ns: int | None
    """Least target of the sequences that run."""
    output_share: float
    """Output of requests that ended lately, as a share of what they might have had."""
    prefill_token_ns: float
    jobs: list[Job]
    """Prompts that run or wait, in order; empty where nobody is refused."""
    pieces: tuple[tuple[float, ...], tuple[float, ...]]
    """Coefficients of the step-time model."""
    ratios: tuple[float, ...]
    """P99 over prediction, by the kind of step."""
    peak_ratio: float
    """Longest time over prediction that a batch which is to grow has to have room for."""
    least_chunk: int
    """Tokens of a prompt that it has to have room for too; 0: prompts wait for a batch's end."""
    room: float
    """Share of a target that a step with a prompt was lately expected to take, in the mean."""
    mean_error: float
    covered: float
    """Share of the last steps within their predicted P99."""
    factors: tuple[float, ...] = (1.0,) * NUM_KINDS
    """What predictions by the pieces are multiplied by, by the kind of step."""


class SnapshotModel:
    """The step-time model as the snapshot has it."""

    def __init__(self, snapshot: LoadSnapshot) -> None:
        first, second = snapshot.pieces
        self._first = StepCoefficients(*first)
        self._second = StepCoefficients(*second)
        self._ratios = snapshot.ratios
        self._factors = snapshot.factors

    def predict_ns(self, features: StepFeatures) -> float:
        longer_ns = max(self._first.predict_ns(features), self._second.predict_ns(features))
        return longer_ns * self._factors[kind_of(features)]

    def p99_ns(self, features: StepFeatures) -> float:
        return self.predict_ns(features) * self._ratios[kind_of(features)]

    def largest_chunk(self, step: StepFeatures, start: int, most: int, limit_ns: float) -> int:
        """Most tokens of a prompt, up to `most`, that the step is expected to hold in `limit_ns`.

        0 if not even one is. Within a kind, a step's time is a square function of the tokens, whose
        root is taken: a forecast asks too often for a search.
        """
        before = step.num_prefill_tokens
        for kind, first, last in PROMPT_KINDS:
            if before + most < first or last <= before:
                continue
            bound_ns = limit_ns / self._factors[kind]
            tokens = min(
                most,
                last - before,
                _most_tokens(self._first, step, start, bound_ns),
                _most_tokens(self._second, step, start, bound_ns),
            )
            if tokens >= max(first - before, 1):
                return int(tokens)
        return 0


def _most_tokens(piece: StepCoefficients, step: StepFeatures, start: int, bound_ns: float) -> float:
    """The n with which one linear piece comes to the bound; see `with_chunk` for n's features."""
    rest_ns = bound_ns - piece.predict_ns(step) - piece.per_kv_token_ns * start
    if step.num_prefill_tokens == 0:
        rest_ns -= piece.prompt_ns
    square = piece.per_qk_pair_ns / 2
    slope = piece.per_prefill_token_ns + piece.per_kv_token_ns + square * (2 * start + 1)
    if rest_ns < 0 or (slope <= 0 and square <= 0):
        return 0.0 if rest_ns < 0 else math.inf
    # The form of the root that does not cancel where the square is next to nothing.
    return 2 * rest_ns / (slope + math.sqrt(slope * slope + 4 * square * rest_ns))
