"""What tests of all packages share."""

from __future__ import annotations

from httpx._config import DEFAULT_TIMEOUT_CONFIG

# httpx gives up after five seconds, for which a busy machine may well stand still.
for phase in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, phase, 120.0)
