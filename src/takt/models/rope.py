"""Rotary embedding: how fast each pair of a head's elements turns with the position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: slow pairs turn `factor` times slower, fast ones are left, between the
    two wavelengths it interpolates. Wavelengths are `original_context / *_freq_factor` tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def apply(self, inv_freq: np.ndarray) -> np.ndarray:
        turns_in_context = self.original_context * inv_freq / (2 * math.pi)
        smooth = (turns_in_context - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        smooth = np.clip(smooth, 0.0, 1.0)
        return np.asarray((1 - smooth) * inv_freq / self.factor + smooth * inv_freq)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`inv_freq[i] = theta ** (-2 i / head_dim)`, scaled.

    `linear_factor` divides all frequencies; `divisors_tensor` names a tensor `[head_dim / 2]` of
    the checkpoint that divides them one by one (how GGUF stores Llama 3's scaling).
    """

    theta: float
    linear_factor: float = 1.0
    llama3: Llama3Scaling | None = None
    divisors_tensor: str | None = None

    def inv_freq(self, head_dim: int, divisors: np.ndarray | None = None) -> np.ndarray:
        """float64 `[head_dim / 2]`; `divisors` is what `divisors_tensor` names."""
        values = self.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        values /= self.linear_factor
        if self.llama3 is not None:
            values = self.llama3.apply(values)
        if divisors is not None:
            values = values / divisors
        return np.asarray(values)
