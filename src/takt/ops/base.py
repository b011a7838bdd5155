"""The `Ops` protocol: coarse operators on opaque activations.

A model calls operators once, inside `Ops.program`; each call becomes one instruction (or a few) of
a `Program`. Activations are handles: an implementation may keep them quantised, split in tiles, or
not at all. Every operator works on the ragged batch that the current `StepInput` describes:
rows are its tokens, `[num_tokens, width]`.

An output row depends only on its own inputs and its context, bit for bit: not on the batch, the
chunking, the number of threads, or whether the program was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from takt.parallel.links import RankLinks
from takt.types.kv import KVCacheSpec
from takt.types.quant import QuantTensor
from takt.types.step import StepInput, StepLimits, StepOutput

Activation = Any
"""Opaque handle of an intermediate, `[num_tokens, width]`; valid inside one `forward` only."""

Weight = Any
"""Opaque handle of packed weights, valid for the life of the `Ops` that packed them."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention needs to know; heads are those of this rank.

    Rope rotates the two halves of a head (element i with i + head_dim / 2) by
    `position * inv_freq[i]`; loaders permute weights that were stored for interleaved pairs.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    inv_freq: np.ndarray  # float64 [head_dim / 2]
    rope_magnitude: float  # multiplies cos and sin (yarn's attention factor); 1.0 otherwise
    window: int | None
    kv_group: int
    q_norm: Weight | None  # [head_dim]
    k_norm: Weight | None
    norm_eps: float
    logit_softcap: float  # 0.0 is off


class Program(Protocol):
    """A captured forward pass. One program serves any batch within its limits."""

    def run(self, step: StepInput, output: StepOutput) -> None:
        """Runs one step: fills `output` and the KV slots named by `slot_mapping`.

        Makes no Python call and no allocation (a native program); blocks until done.
        """
        ...


@runtime_checkable
class StartableProgram(Program, Protocol):
    """A program whose step others begin while the caller does something else."""

    def start(self, step: StepInput) -> None:
        """Begins a step; `step` may be written again."""
        ...

    def finish(self, output: StepOutput) -> None:
        """Completes the step that was started, in which the caller takes part."""
        ...


class Ops(Protocol):
    @property
    def num_threads(self) -> int: ...

    @property
    def weight_bytes(self) -> int:
        """Packed matrices in memory; 0 where the backend does not say."""
        ...

    @property
    def spin_ns(self) -> int:
        """How long waits spin before they sleep; 0 where the backend has no threads that wait."""
        ...

    def close(self) -> None:
        """Gives threads and pools back."""
        ...

    # -- once, while loading ------------------------------------------------------------------
    def pack_linear(self, parts: Sequence[QuantTensor], bias: np.ndarray | None = None) -> Weight:
        """Stacks `parts` along rows into one matrix `[sum(num_rows), num_columns]`.

        Parts may have different storage types; each keeps its own, or is converted to its
        `packed_type`. `bias` is float32
        `[sum(num_rows)]`. The same handle serves `linear`, `embed` and `logits`.
        """
        ...

    def pack_vector(self, values: np.ndarray) -> Weight:
        """float32 `[width]`, such as a norm's weight."""
        ...

    def allocate_kv(self, spec: KVCacheSpec, num_blocks: Sequence[int]) -> None:
        """Makes the pools, `num_blocks[g]` blocks for group g; never zeroed, never resized."""
        ...

    def program(
        self, forward: Callable[[], None], limits: StepLimits, *, max_position: int, eager: bool
    ) -> Program:
        """Captures `forward`, which calls the operators below; `eager` calls them at each step."""
        ...

    # -- inside `forward` ---------------------------------------------------------------------
    def embed(
        self, table: Weight, scale: float, *, first_token: int = 0, vocab_size: int | None = None
    ) -> Activation:
        """Rows of `table` for the step's token ids, times `scale`: `[num_tokens, width]`.

        A table with a part of `vocab_size` rows, from that of `first_token` on, gives zeros for
        tokens that it has no row of.
        """
        ...

    def norm(
        self,
        x: Activation,
        weight: Weight,
        eps: float,
        *,
        residual: Activation | None = None,
        post_weight: Weight | None = None,
    ) -> tuple[Activation, Activation]:
        """Returns `(rms_norm(r) * weight, r)` with `r = residual + y`, `residual` 0 if None.

        `y` is x, or `rms_norm(x) * post_weight` where a model normalises a block's output too.
        """
        ...

    def linear(self, x: Activation, weight: Weight) -> Activation:
        """`x @ weight.T + bias`: `[num_tokens, num_rows]`."""
        ...

    def qkv_rope_cache(self, qkv: Activation, attention: AttentionSpec, layer: int) -> Activation:
        """Normalises q and k per head where asked, rotates both, writes k and v to the cache.

        `qkv` is `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`; returns q,
        `[num_tokens, num_heads * head_dim]`.
        """
        ...

    def paged_attention(self, q: Activation, attention: AttentionSpec, layer: int) -> Activation:
        """Causal attention over the cache alone: `[num_tokens, num_heads * head_dim]`.

        The token at position p sees positions `max(0, p - window + 1) .. p`.
        """
        ...

    def gated_mlp(self, x: Activation, gate_up: Weight, down: Weight, kind: str) -> Activation:
        """`(act(x @ gate.T) * (x @ up.T)) @ down.T`; `gate_up` stacks gate over up.

        `kind` is `silu` or `gelu_tanh`.
        """
        ...

    def logits(self, x: Activation, head: Weight, softcap: float) -> Activation:
        """`[num_rows, vocab_size]` for the step's `row_tokens`; softcap 0.0 is off."""
        ...

    def sample(self, logits: Activation) -> None:
        """Fills the `StepOutput` from the rows of logits: sampled, or scored against a target.

        In order: raw logprobs are taken; bias; repetition, presence and frequency penalties;
        temperature (0 is greedy, the lowest token id wins a tie); top-k; top-p; min-p; draw.
        """
        ...

    # -- between ranks; `links` say which -----------------------------------------------------
    def connect(self, links: RankLinks) -> None:
        """Gives the operators below their ranks; call it before `program`."""
        ...

    def all_reduce(self, x: Activation) -> Activation:
        """The sum of x over the tensor-parallel group, in the order of ranks, on all of them."""
        ...

    def gather(self, logits: Activation, borders: Sequence[int]) -> Activation:
        """Logits of the whole vocabulary from ranks that hold columns of it.

        `borders[r]` is the first column of rank r, the last entry the vocabulary's size. Every
        rank calls `sample` on the result; the first of the group does it.
        """
        ...

    def send(self, x: Activation) -> None:
        """Rows of x to the next stage, which must receive as often as this one sends."""
        ...

    def receive(self, width: int) -> Activation:
        """`[num_tokens, width]` from the stage before."""
        ...
