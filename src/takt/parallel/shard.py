"""One rank's part of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """[first, end) of something that is counted."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first

    def times(self, factor: int) -> Span:
        return Span(self.first * factor, self.end * factor)


@dataclass(frozen=True, slots=True)
class Shard:
    """What a rank holds. Column-parallel layers keep rows of their matrix, row-parallel ones
    columns; norms are whole, and a KV head may be held by several ranks of a group.
    """

    tensor_rank: int
    tensor_size: int
    layers: Span
    num_layers: int
    """Of the model."""
    heads: Span
    kv_heads: Span
    mlp: Span
    """Inner features of the MLP."""
    vocab: Span
    """Rows of the embedding and of the head."""
    vocab_borders: tuple[int, ...]
    """First row of each rank of the group, then the vocabulary's size."""

    @property
    def is_first_stage(self) -> bool:
        return self.layers.first == 0

    @property
    def is_last_stage(self) -> bool:
        return self.layers.end == self.num_layers

    @property
    def is_first_of_group(self) -> bool:
        """Whether it adds the bias of row-parallel layers."""
        return self.tensor_rank == 0
