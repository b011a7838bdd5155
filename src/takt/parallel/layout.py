"""Ranks and their places: tensor-parallel groups inside the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Rank `stage * tensor_size + tensor_rank` is one process.

    The first rank of a stage begins its group; the first of the last stage samples.
    """

    tensor_size: int = 1
    num_stages: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tensor_size * self.num_stages

    @property
    def sampling_rank(self) -> int:
        """The rank that fills the `StepOutput`."""
        return (self.num_stages - 1) * self.tensor_size

    def stage_of(self, rank: int) -> int:
        return rank // self.tensor_size

    def tensor_rank_of(self, rank: int) -> int:
        return rank % self.tensor_size
