"""Sizes that bound a scheduler's steps."""

from __future__ import annotations

from dataclasses import dataclass

from takt.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Tokens, sequences and rows of logits of one step; tokens of one request."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_rows: int
    """A step needs a row for each choice it samples and each prompt position it scores."""
    max_steps_in_flight: int
    """Steps that may be scheduled before the first of them is updated."""
    enable_chunked_prefill: bool
    num_micro_batches: int = 1
    """Most batches that the stages of a pipeline work on at once. With more than one, a sequence is
    in one step in flight only, and decodes are spread evenly over steps."""
    phases_differ: bool = False
    """Whether generated tokens are computed in another precision than a prompt's. A chunk then
    holds tokens of one kind, and a step has generated ones first."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_rows"):
            if getattr(self, name) < self.max_num_seqs:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, less than max_num_seqs, "
                    f"{self.max_num_seqs}: a step could not hold one token of each sequence; "
                    "raise the one or lower the other"
                )

    def micro_batch(self, num_running: int, depth: int) -> int:
        """The most decodes of a step of a pipeline where there are to be `depth` in flight."""
        return -(-num_running // depth)

    @property
    def max_in_flight_tokens(self) -> int:
        """Most tokens of one sequence that steps in flight compute."""
        return self.max_num_batched_tokens * self.max_steps_in_flight
