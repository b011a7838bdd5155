"""The input and output of one step: flat structs with fields at fixed offsets.

A step is one contiguous buffer, so that it can be copied by one memcpy into a ring, a socket or
another rank. Offsets depend on `StepLimits` alone; the native module receives the table of offsets
that is computed here, so that there is one source of truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGNMENT = 64

SAMPLE = -1
"""`row_targets` value of a row that is sampled; any other value is a token id that is scored."""

NO_LOGPROBS = -1
"""`row_num_logprobs` value of a row that reports no logprobs."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Sizes that the buffers of a step are made for, once, at start-up."""

    max_num_tokens: int
    max_num_seqs: int
    max_num_rows: int
    """Rows of logits a step may ask for: sampled and scored positions together."""
    max_blocks_per_seq: int
    num_kv_groups: int
    max_num_block_copies: int
    max_num_history: int
    """Entries of (token, count) that penalties of all rows together may need."""
    max_num_biases: int
    max_logprobs: int


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StepLayout:
    fields: dict[str, Field]
    nbytes: int

    @staticmethod
    def build(spec: list[tuple[str, str, tuple[int, ...]]]) -> StepLayout:
        fields: dict[str, Field] = {}
        offset = 0
        for name, dtype, shape in spec:
            field = Field(name, np.dtype(dtype), shape, offset)
            fields[name] = field
            offset += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
        return StepLayout(fields, offset)

    def offsets(self) -> dict[str, int]:
        return {name: field.offset for name, field in self.fields.items()}


def input_layout(limits: StepLimits) -> StepLayout:
    """Fields of a `StepInput`, in order.

    `header` is int64 `[8]`: step_id, num_tokens, num_seqs, num_rows, num_block_copies,
    num_generated, and two spare words. Where prompts have a precision of their own, tokens below
    num_generated are generated ones, and rows have that order too. Tokens of a sequence are
    consecutive; sequence s owns tokens
    `query_start[s]:query_start[s + 1]`, and its context after this step has `seq_lens[s]` tokens.
    """
    tokens, seqs, rows = limits.max_num_tokens, limits.max_num_seqs, limits.max_num_rows
    groups = limits.num_kv_groups
    return StepLayout.build(
        [
            ("header", "int64", (8,)),
            ("token_ids", "int32", (tokens,)),
            ("positions", "int32", (tokens,)),
            ("query_start", "int32", (seqs + 1,)),
            ("seq_lens", "int32", (seqs,)),
            # slot = block_id * block_size + offset in the block, for each KV group.
            ("slot_mapping", "int64", (groups, tokens)),
            # Padded with -1. Blocks that a sliding window has passed are -1 too.
            ("block_tables", "int32", (groups, seqs, limits.max_blocks_per_seq)),
            # (KV group, source block, destination block); done before anything else in the step.
            ("block_copies", "int32", (limits.max_num_block_copies, 3)),
            # One row of logits each: the token whose hidden state it is computed from.
            ("row_tokens", "int32", (rows,)),
            ("row_targets", "int32", (rows,)),
            ("row_num_logprobs", "int32", (rows,)),
            ("row_temperature", "float32", (rows,)),
            ("row_top_k", "int32", (rows,)),
            ("row_top_p", "float32", (rows,)),
            ("row_min_p", "float32", (rows,)),
            ("row_repetition_penalty", "float32", (rows,)),
            ("row_presence_penalty", "float32", (rows,)),
            ("row_frequency_penalty", "float32", (rows,)),
            # Key of the counter-based generator: (seed, choice, position).
            ("row_seed", "uint64", (rows,)),
            ("row_choice", "uint32", (rows,)),
            ("row_position", "uint32", (rows,)),
            # Row r penalises history[history_start[r]:history_start[r + 1]].
            ("history_start", "int32", (rows + 1,)),
            ("history_token", "int32", (limits.max_num_history,)),
            # Times generated; 0 for a token that only the prompt holds.
            ("history_count", "int32", (limits.max_num_history,)),
            ("bias_start", "int32", (rows + 1,)),
            ("bias_token", "int32", (limits.max_num_biases,)),
            # -inf forbids a token (end-of-text ids before `min_tokens`).
            ("bias_value", "float32", (limits.max_num_biases,)),
        ]
    )


def output_layout(limits: StepLimits) -> StepLayout:
    """Fields of a `StepOutput`, in order.

    `header` is int64 `[8]`: step_id, start_ns, end_ns (monotonic), num_rows, num_redone_tiles,
    stolen_run_ns (time that threads were kept off their CPUs in this run, summed), stolen_host_ns
    (the same of the caller since the run before), and computed_ns (time that threads were on a CPU
    and not waiting, summed; 0 if unknown). Logprobs are those of the raw model, in nats, before any
    filter; rank 1 is the most likely token. Columns of `top_*` past a row's `row_num_logprobs` are
    not written.
    """
    rows, top = limits.max_num_rows, limits.max_logprobs
    return StepLayout.build(
        [
            ("header", "int64", (8,)),
            ("token_ids", "int32", (rows,)),
            ("logprobs", "float32", (rows,)),
            ("ranks", "int32", (rows,)),
            ("top_token_ids", "int32", (rows, max(top, 1))),
            ("top_logprobs", "float32", (rows, max(top, 1))),
        ]
    )


class _FlatStruct:
    """numpy views over one buffer; `views[name]` has the field's dtype and shape.

    `buffer` is uint8, aligned to a cache line, with the layout's size; zeroed memory if None.
    """

    def __init__(self, layout: StepLayout, buffer: np.ndarray | None) -> None:
        self.layout = layout
        self.buffer = _aligned_zeros(layout.nbytes) if buffer is None else buffer
        self.address: int = self.buffer.ctypes.data
        self.views: dict[str, np.ndarray] = {
            name: self.buffer[f.offset : f.offset + f.nbytes].view(f.dtype).reshape(f.shape)
            for name, f in layout.fields.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self.views[name]


class StepInput(_FlatStruct):
    def __init__(self, limits: StepLimits, buffer: np.ndarray | None = None) -> None:
        super().__init__(input_layout(limits), buffer)

    @property
    def num_tokens(self) -> int:
        return int(self.views["header"][1])

    @property
    def num_seqs(self) -> int:
        return int(self.views["header"][2])

    @property
    def num_rows(self) -> int:
        return int(self.views["header"][3])

    @property
    def num_block_copies(self) -> int:
        return int(self.views["header"][4])


class StepOutput(_FlatStruct):
    def __init__(self, limits: StepLimits, buffer: np.ndarray | None = None) -> None:
        super().__init__(output_layout(limits), buffer)


def _aligned_zeros(nbytes: int) -> np.ndarray:
    """Zeroed uint8 `[nbytes]` on a cache line; pages cost memory only once they are touched."""
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
