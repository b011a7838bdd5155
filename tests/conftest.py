"""What tests of all packages share: limits that a busy machine does not reach."""

from __future__ import annotations

import pytest
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that may take longest come first, so that no CPU waits for them at the end."""

    def limit_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return float(mark.args[0]) if mark and mark.args else 0.0

    items.sort(key=limit_s, reverse=True)
