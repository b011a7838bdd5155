"""One copy of a block that a step must make before it computes anything."""

from __future__ import annotations

from typing import NamedTuple


class BlockCopy(NamedTuple):
    """One block to copy before the step computes anything."""

    kv_group: int
    source: int
    destination: int
