"""What the engine and ranks on any hosts say to each other before the first step."""

from __future__ import annotations

import msgspec

from takt.engine.rank_wire import RankSizes
from takt.parallel.host_map import HostMap


class RankPlace(msgspec.Struct, frozen=True):
    """Where a rank is, and what its host has for it and others there."""

    host_key: str
    num_cpus: int


class HostOrder(msgspec.Struct, frozen=True):
    """To all ranks, once they have loaded. `token` opens connections between hosts."""

    sizes: RankSizes
    host_map: HostMap
    token: bytes


class SegmentOpened(msgspec.Struct, frozen=True):
    """Of the leader of a host that the engine is not on: the door of the host's segment."""

    door: str


class RankBound(msgspec.Struct, frozen=True):
    """Of every rank; a leader's connections listen at `addresses`, by their names."""

    addresses: dict[str, str]
