"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Where models and derived files are kept: $TAKT_CACHE, or ~/.cache/takt."""
    return Path(os.environ.get("TAKT_CACHE") or Path.home() / ".cache" / "takt")
