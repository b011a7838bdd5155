"""What the rows of running sequences ask of the sampler, one seat each, ready to be gathered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from takt.engine.token_counts import TokenCounts
from takt.errors import InvariantError
from takt.scheduler.request import Request
from takt.types.step import NO_LOGPROBS, StepInput

# Field of a StepInput's rows -> its dtype there. All are constant for the life of a sequence.
_COLUMNS = {
    "row_num_logprobs": np.int32,
    "row_temperature": np.float32,
    "row_top_k": np.int32,
    "row_top_p": np.float32,
    "row_min_p": np.float32,
    "row_repetition_penalty": np.float32,
    "row_presence_penalty": np.float32,
    "row_frequency_penalty": np.float32,
    "row_seed": np.uint64,
    "row_choice": np.uint32,
}

# Whatever is beyond means the same: every token stays, or all are equally likely.
_MAX_TOP_K = int(np.iinfo(np.int32).max)
_MAX_TEMPERATURE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Bias:
    """Entries of one row: int32 and float32 `[num_biases]`."""

    tokens: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class SeatBias:
    """`early` holds for the first `num_early` output tokens, `late` afterwards."""

    early: Bias | None
    late: Bias | None
    num_early: int

    def at(self, num_output_tokens: int) -> Bias | None:
        return self.early if num_output_tokens < self.num_early else self.late


class Seats:
    """Gives each running sequence a seat and keeps what its rows repeat from step to step."""

    def __init__(self, max_num_seqs: int) -> None:
        self._columns = {name: np.zeros(max_num_seqs, dtype) for name, dtype in _COLUMNS.items()}
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self.seat_of: dict[Request, int] = {}
        self.counts: dict[int, TokenCounts] = {}
        """By seat, for sequences with penalties."""
        self.biases: dict[int, SeatBias] = {}
        """By seat, for sequences with a bias."""
        self.last_row: list[tuple[int, int]] = [(-1, -1)] * max_num_seqs
        """By seat: step and row that sampled the sequence's newest token."""
        self.version = 0
        """Changes whenever a seat changes hands."""

    def __len__(self) -> int:
        return len(self.seat_of)

    def take(self, request: Request) -> int:
        if not self._free:
            raise InvariantError("more sequences run than max_num_seqs allows")
        seat = self._free.pop()
        self.seat_of[request] = seat
        self.version += 1
        sampling, columns = request.sampling, self._columns
        logprobs = sampling.logprobs
        columns["row_num_logprobs"][seat] = NO_LOGPROBS if logprobs is None else logprobs
        columns["row_temperature"][seat] = min(sampling.temperature, _MAX_TEMPERATURE)
        columns["row_top_k"][seat] = min(sampling.top_k, _MAX_TOP_K)
        columns["row_top_p"][seat] = sampling.top_p
        columns["row_min_p"][seat] = sampling.min_p
        columns["row_repetition_penalty"][seat] = sampling.repetition_penalty
        columns["row_presence_penalty"][seat] = sampling.presence_penalty
        columns["row_frequency_penalty"][seat] = sampling.frequency_penalty
        columns["row_seed"][seat] = sampling.seed or 0
        columns["row_choice"][seat] = request.choice
        if sampling.has_penalties:
            self.counts[seat] = TokenCounts(request.prompt_token_ids)
        bias = _bias_of(request)
        if bias is not None:
            self.biases[seat] = bias
        return seat

    def release(self, request: Request) -> None:
        """Frees the seat of a sequence that ended or was preempted; it may have none."""
        seat = self.seat_of.pop(request, None)
        if seat is None:
            return
        self.counts.pop(seat, None)
        self.biases.pop(seat, None)
        self._free.append(seat)

    def gather(self, seats: np.ndarray, step: StepInput) -> None:
        """Writes the constant columns of the first `len(seats)` rows; `seats` is intp."""
        num_rows = len(seats)
        for name, column in self._columns.items():
            # mode="clip": with "raise", numpy would go through a buffer of its own.
            column.take(seats, out=step.views[name][:num_rows], mode="clip")


def _bias_of(request: Request) -> SeatBias | None:
    sampling = request.sampling
    forbidden = request.stop_token_ids if sampling.min_tokens else frozenset()
    if not sampling.logit_bias and not forbidden:
        return None
    late = _bias(dict(sampling.logit_bias))
    if not forbidden:
        return SeatBias(None, late, 0)
    early = dict(sampling.logit_bias)
    early.update(dict.fromkeys(forbidden, -np.inf))
    return SeatBias(_bias(early), late, sampling.min_tokens)


def _bias(entries: dict[int, float]) -> Bias | None:
    if not entries:
        return None
    ordered = sorted(entries.items())
    return Bias(
        np.array([token for token, _ in ordered], dtype=np.int32),
        np.array([value for _, value in ordered], dtype=np.float32),
    )
