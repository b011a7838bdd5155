"""What a leader is given to do."""

from __future__ import annotations

import msgspec

from takt.gateway.attempt import OutgoingRequest
from takt.gateway.policy import Route


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One request to be led. `key` is what the upstream sees; empty if the request has none."""

    route: Route
    request: OutgoingRequest
    key: str
    deadline_ns: int
    may_repeat: bool
    """Whether an attempt of unknown outcome may be made again anywhere."""
    pinned: str = ""
    """The only upstream that may be asked: it deduplicates, and has had this request."""
    digest: str = ""
