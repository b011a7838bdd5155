"""What connects a rank to others; the native module makes them over shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RankLinks:
    """A rank's communicator with its tensor-parallel group, and channels to neighbouring stages.

    `group` is a `takt._native.Communicator`, the others are `takt._native.Channel`s; None where a
    rank has no such neighbour. Implementations of `Ops` take no other kind.
    """

    group: Any = None
    previous: Any = None
    next: Any = None
