"""What tests of all packages share: limits that a busy machine does not reach."""

from __future__ import annotations

from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

# httpx gives up after five seconds, for which such a machine may well stand still.
for phase in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, phase, 120.0)

# No example has a time limit, and none is another in every run: a test that fails has been broken.
settings.register_profile(
    "takt", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("takt")
