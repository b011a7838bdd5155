"""Drives a program step by step from lists of tokens, with a trivial block table.

For tests of operators and models: no scheduler, no sharing of blocks, nothing freed but what a
sliding window has passed. Blocks are handed out in a scattered order, so that a program that
mistook a block's place for its number would show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from takt.ops.base import Ops
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.step import NO_LOGPROBS, SAMPLE, StepInput, StepLimits, StepOutput


@dataclass
class RowRequest:
    """One row of logits; fields are those of `StepInput`. `offset` counts in the chunk's tokens."""

    offset: int = -1
    target: int = SAMPLE
    num_logprobs: int = NO_LOGPROBS
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int | None = None
    """The index of the token to be drawn if not given."""
    history: dict[int, int] = field(default_factory=dict)
    bias: dict[int, float] = field(default_factory=dict)


@dataclass
class SequenceState:
    """A sequence's place in the pools and the number of tokens in its cache."""

    index: int
    num_tokens: int = 0


@dataclass
class Chunk:
    """Tokens that one step adds to one sequence, and the rows asked of them."""

    sequence: SequenceState
    token_ids: Sequence[int]
    rows: Sequence[RowRequest] = (RowRequest(),)
    is_generated: bool = False
    """Tokens that a step has sampled: where they are computed unlike a prompt's, chunks of these
    come before others."""


@dataclass
class RowResult:
    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]

    def logprobs(self, vocab_size: int) -> np.ndarray:
        """Dense float32 `[vocab_size]`, for a row that asked for all of them."""
        dense = np.full(vocab_size, np.nan, dtype=np.float32)
        for token, value in self.top:
            dense[token] = value
        return dense


class StepDriver:
    """Allocates pools, makes a program of `forward` and runs steps.

    Each sequence owns `max_seq_tokens` of blocks in each KV group.
    """

    def __init__(
        self,
        ops: Ops,
        forward: Callable[[], None],
        groups: tuple[KVGroupSpec, ...],
        *,
        num_kv_heads: int,
        head_dim: int,
        kv_dtype: KVDtype = KVDtype.F32,
        block_size: int = 16,
        max_num_seqs: int = 8,
        max_seq_tokens: int = 256,
        max_num_tokens: int = 512,
        max_num_rows: int = 512,
        max_logprobs: int = 0,
        eager: bool = False,
    ) -> None:
        self.groups = groups
        self.block_size = block_size
        self.blocks_per_seq = -(-max_seq_tokens // block_size)
        self.limits = StepLimits(
            max_num_tokens=max_num_tokens,
            max_num_seqs=max_num_seqs,
            max_num_rows=max_num_rows,
            max_blocks_per_seq=self.blocks_per_seq,
            num_kv_groups=len(groups),
            max_num_block_copies=16,
            max_num_history=4096,
            max_num_biases=4096,
            max_logprobs=max_logprobs,
        )
        num_blocks = max_num_seqs * self.blocks_per_seq
        spec = KVCacheSpec(groups, num_kv_heads, head_dim, block_size, kv_dtype)
        ops.allocate_kv(spec, [num_blocks] * len(groups))
        scattered = np.random.default_rng(7)
        self._blocks = [scattered.permutation(num_blocks).reshape(max_num_seqs, -1) for _ in groups]
        self.program = ops.program(forward, self.limits, max_position=max_seq_tokens, eager=eager)
        self.step_input = StepInput(self.limits)
        self.step_output = StepOutput(self.limits)
        self._num_sequences = 0
        self._step_id = 0

    def new_sequence(self) -> SequenceState:
        assert self._num_sequences < self.limits.max_num_seqs
        self._num_sequences += 1
        return SequenceState(self._num_sequences - 1)

    def restart(self) -> None:
        """Forgets all sequences; what they left in the pools stays there."""
        self._num_sequences = 0

    def step(
        self,
        chunks: Sequence[Chunk],
        block_copies: Sequence[tuple[int, int, int]] = (),
    ) -> list[list[RowResult]]:
        """Runs one step; results in the order of chunks and their rows."""
        step = self.step_input
        step.buffer[:] = 0
        self._step_id += 1
        token, row, num_generated = 0, 0, 0
        for s, chunk in enumerate(chunks):
            self._write_sequence(s, token, chunk)
            for request in chunk.rows:
                self._write_row(row, token, chunk, request)
                row += 1
            token += len(chunk.token_ids)
            if chunk.is_generated:
                num_generated = token
            chunk.sequence.num_tokens += len(chunk.token_ids)
        for i, copy in enumerate(block_copies):
            step["block_copies"][i] = copy
        counts = (token, len(chunks), row, len(block_copies), num_generated)
        step["header"][:6] = (self._step_id, *counts)
        self.program.run(step, self.step_output)
        assert self.step_output["header"][0] == self._step_id
        return self._read_rows(chunks)

    def generate(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        *,
        chunk_size: int | None = None,
        num_logprobs: int = NO_LOGPROBS,
        **sampling: float | int,
    ) -> list[RowResult]:
        """One sequence alone; the prompt in chunks of `chunk_size` or whole."""
        sequence = self.new_sequence()
        request = RowRequest(num_logprobs=num_logprobs, **sampling)  # type: ignore[arg-type]
        tokens, results = list(prompt), []
        while tokens[: chunk_size or len(tokens)] != tokens:
            self.step([Chunk(sequence, tokens[:chunk_size], ())])
            tokens = tokens[chunk_size:]
        for i in range(num_tokens):
            results.append(self.step([Chunk(sequence, tokens, [request], i > 0)])[0][0])
            tokens = [results[-1].token_id]
        return results

    def generate_together(
        self, prompts: Sequence[Sequence[int]], num_tokens: int
    ) -> list[list[int]]:
        """Greedy tokens of all prompts, in the same steps."""
        sequences = [self.new_sequence() for _ in prompts]
        pending = [list(prompt) for prompt in prompts]
        generated: list[list[int]] = [[] for _ in prompts]
        for step in range(num_tokens):
            chunks = [
                Chunk(sequence, tokens, is_generated=step > 0)
                for sequence, tokens in zip(sequences, pending, strict=True)
            ]
            for i, (row,) in enumerate(self.step(chunks)):
                generated[i].append(row.token_id)
                pending[i] = [row.token_id]
        return generated

    def score(
        self, tokens: Sequence[int], *, chunk_size: int | None = None, num_logprobs: int = 0
    ) -> list[RowResult]:
        """Every token but the first, given those before it."""
        sequence = self.new_sequence()
        results: list[RowResult] = []
        size = chunk_size or len(tokens)
        for start in range(0, len(tokens) - 1, size):
            chunk = tokens[start : min(start + size, len(tokens) - 1)]
            rows = [
                RowRequest(i, target=tokens[start + i + 1], num_logprobs=num_logprobs)
                for i in range(len(chunk))
            ]
            results += self.step([Chunk(sequence, chunk, rows)])[0]
        return results

    def _write_sequence(self, s: int, first: int, chunk: Chunk) -> None:
        step, count = self.step_input, len(chunk.token_ids)
        start, end = chunk.sequence.num_tokens, chunk.sequence.num_tokens + count
        positions = np.arange(start, end)
        step["token_ids"][first : first + count] = chunk.token_ids
        step["positions"][first : first + count] = positions
        step["query_start"][s : s + 2] = (first, first + count)
        step["seq_lens"][s] = end
        for g, group in enumerate(self.groups):
            table = self._blocks[g][chunk.sequence.index]
            step["slot_mapping"][g, first : first + count] = (
                table[positions // self.block_size] * self.block_size + positions % self.block_size
            )
            used = -(-end // self.block_size)
            step["block_tables"][g, s] = -1
            passed = 0
            if group.window is not None:
                passed = max(0, start - group.window + 1) // self.block_size
            step["block_tables"][g, s, passed:used] = table[passed:used]

    def _write_row(self, row: int, first: int, chunk: Chunk, request: RowRequest) -> None:
        step = self.step_input
        offset = request.offset % len(chunk.token_ids)
        position = request.position
        if position is None:
            position = chunk.sequence.num_tokens + offset + 1
        step["row_tokens"][row] = first + offset
        step["row_targets"][row] = request.target
        step["row_position"][row] = position
        for name in (
            "num_logprobs",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "choice",
        ):
            step[f"row_{name}"][row] = getattr(request, name)
        self._write_pairs(row, "history_start", "history_token", "history_count", request.history)
        self._write_pairs(row, "bias_start", "bias_token", "bias_value", request.bias)

    def _write_pairs(
        self, row: int, start: str, key: str, value: str, pairs: dict[int, int] | dict[int, float]
    ) -> None:
        step = self.step_input
        first = int(step[start][row])
        last = first + len(pairs)
        step[start][row + 1] = last
        step[key][first:last] = list(pairs.keys())
        step[value][first:last] = list(pairs.values())

    def _read_rows(self, chunks: Sequence[Chunk]) -> list[list[RowResult]]:
        output, row, results = self.step_output, 0, []
        for chunk in chunks:
            results.append([])
            for request in chunk.rows:
                top_ids = output["top_token_ids"][row][: max(request.num_logprobs, 0)].tolist()
                top = list(zip(top_ids, output["top_logprobs"][row].tolist(), strict=False))
                results[-1].append(
                    RowResult(
                        int(output["token_ids"][row]),
                        float(output["logprobs"][row]),
                        int(output["ranks"][row]),
                        top,
                    )
                )
                row += 1
        return results
