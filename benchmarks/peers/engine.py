"""An engine under measurement, whatever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request: when it was given to the engine, and int64 `[num_output]` stamps of tokens."""

    start_ns: int
    stamps_ns: npt.NDArray[np.int64]
    num_cached_tokens: int = 0


class Engine(Protocol):
    def run(self, prompts: Sequence[list[int]], streams: int, num_output: int) -> list[Timeline]:
        """A closed loop of greedy requests; raises `EngineError`."""
        ...

    def pause(self) -> None:
        """Takes no processor time until it is resumed."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class EngineError(Exception):
    """An engine that does not start, or that fails."""
